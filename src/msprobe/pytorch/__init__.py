"""Everything that knows torch; the public door for PyTorch training scripts."""

from msprobe.compare_function import compare, compare_distributed
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.seeds import seed_all

__all__ = ["PrecisionDebugger", "compare", "compare_distributed", "seed_all"]
