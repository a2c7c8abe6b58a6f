"""Export, load, inspect and run a function as bytes; the data codec."""
