"""What every test has: the marks of the specification (tests/spec_marks.py)."""

from spec_marks import pytest_addoption, pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]
