"""Faults put into the code one at a time: the quick tests must notice each of them."""
