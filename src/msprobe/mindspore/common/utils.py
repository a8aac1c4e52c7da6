"""The callbacks, where the specification's samples import them from."""

from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep

__all__ = ["MsprobeInitStep", "MsprobeStep"]
