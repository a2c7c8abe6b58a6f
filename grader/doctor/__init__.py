"""Diagnosis of the machine and the installation, with a command that fixes each problem."""
