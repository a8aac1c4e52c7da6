"""Score the answers of msprobe: `python -m truth` compares pairs of runs and counts the right names.

The truth about a pair is known: either the target has a fault at a known call, or both runs are sound and
differ only as devices, dtypes and kernels do. docs/truth.md is what it writes, and says how to run it.
"""
