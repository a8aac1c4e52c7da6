"""The optional compiled kernels; msprobe.kernels is the only module that calls them."""

from typing import TypeVar

_Values = TypeVar("_Values", bound=tuple[object, ...])

def statistics(type: type[_Values], address: int, count: int, kind: str, /) -> _Values: ...
def sketch(address: int, count: int, kind: str, /) -> bytes: ...
