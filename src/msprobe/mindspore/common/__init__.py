"""A path that the specification prints: msprobe.mindspore.common.utils."""
