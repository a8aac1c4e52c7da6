"""The file format of recordings: nobody else knows a key or a file name."""

from msprobe.store.recordings import read, tensor_path

__all__ = ["read", "tensor_path"]
