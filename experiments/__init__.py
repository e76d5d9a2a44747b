"""One file for each figure or table of the papers; run them as ``python -m experiments.NAME``."""
