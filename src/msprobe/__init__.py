"""msprobe: record what a training run computed, and say which call made the difference."""

__version__ = "1.0.0"
