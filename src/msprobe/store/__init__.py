"""The file format of recordings: nobody else knows a key or a file name."""

from msprobe.store.formats import Source
from msprobe.store.recordings import find, must_be_of, read, read_one, tensor_path, tensors_of

__all__ = ["Source", "find", "must_be_of", "read", "read_one", "tensor_path", "tensors_of"]
