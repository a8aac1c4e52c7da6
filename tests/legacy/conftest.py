"""The fixtures of the tests of the old package."""

from legacy_case import golden, old, told

__all__ = ["golden", "old", "told"]
