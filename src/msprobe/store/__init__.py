"""The file format of recordings: nobody else knows a key or a file name."""

from msprobe.store.recordings import Source, find, read, read_one, tensor_path

__all__ = ["Source", "find", "read", "read_one", "tensor_path"]
