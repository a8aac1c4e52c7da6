"""Holds support_wrap_ops.yaml at the place where users of this tool look for it."""
