"""The live board of a workshop: who works on which exercise, who is stuck, and what is sent to everyone."""
