"""The overflow register of an NPU that computes without NaN and infinities: it saturates, and notes that."""

from __future__ import annotations

import sys
from typing import Any


def overflow_flag() -> bool | None:
    """Whether it was set since it was read last; None where numbers themselves show an overflow."""
    npu: Any = sys.modules.get("torch_npu")  # not imported for this: a script that uses it has done so
    if npu is None or not hasattr(npu.npu, "utils") or npu.npu.utils.is_support_inf_nan():
        return None
    is_set = bool(npu.npu.utils.get_npu_overflow_flag())
    if is_set:
        npu.npu.utils.clear_npu_overflow_flag()
    return is_set
