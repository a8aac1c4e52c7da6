"""The public door for MindSpore training: so far, comparing what was recorded."""

from msprobe.compare_function import compare, compare_distributed

__all__ = ["compare", "compare_distributed"]
