"""The course put to its own test: right answers, wrong answers, machine-made mutants."""
