"""The file format of recordings: nobody else knows a key or a file name."""

from msprobe.store.recordings import Source, find, must_be_of, read, read_one, tensor_path

__all__ = ["Source", "find", "must_be_of", "read", "read_one", "tensor_path"]
