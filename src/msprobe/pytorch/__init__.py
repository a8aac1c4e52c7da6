"""Everything that knows torch; the public door for PyTorch training scripts."""

from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.seeds import seed_all

__all__ = ["PrecisionDebugger", "seed_all"]
