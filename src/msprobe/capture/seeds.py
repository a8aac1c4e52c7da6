"""The random states of Python and numpy, which training draws from beside those of its framework."""

from __future__ import annotations

import os
import random

import numpy as np

from msprobe.errors import UsageError
from msprobe.given import is_count


def fix_seeds(seed: int, mode: bool, rm_dropout: bool) -> None:
    """Fix them, once it is sure that the arguments of seed_all() are good."""
    if not is_count(seed) or seed >= 2**32:
        raise UsageError(f"seed_all takes a whole number from 0 to 2**32 - 1 as seed, not {seed!r}.")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} of seed_all is {value!r}; it must be True or False.")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
