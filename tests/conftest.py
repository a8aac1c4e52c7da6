"""What every test has: the marks of the specification (tests/spec_marks.py), and kernels that always run."""

import gc
import os

import pytest

from spec_marks import pytest_addoption, pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

# Some virtual machines list AMX among what their processor can do, and end a process that uses it: matrix
# products of bfloat16 would die there. What tests start inherits this.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Hide what earlier tests left behind from the garbage collector, which some tests call often."""
    gc.collect()
    gc.freeze()
