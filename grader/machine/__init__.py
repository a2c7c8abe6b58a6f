"""The machine and the set-up that a course stands on: what is there, what it costs, and the command that mends it."""
