"""Holds support_wrap_ops.yaml, the list of functions that are recorded; users may edit it."""
