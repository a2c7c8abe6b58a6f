"""Holds a number of a million digits, where a reader may want to know its value."""
# problem: not JSON
# %% notebook
path.write_bytes(b'{"nbformat": ' + b"9" * 1_000_000 + b', "cells": []}')
