"""How many of a thing, in a sentence."""

from __future__ import annotations

from types import MappingProxyType

_OF_ONE = MappingProxyType({"are": "is", "were": "was", "": ""})


def counted(number: int, noun: str, verb: str = "") -> str:
    """`1 call`, `2 calls`; with the verb "were": `1 call was`, `2 calls were`."""
    words = (noun, _OF_ONE[verb]) if number == 1 else (f"{noun}s", verb)
    return f"{number} {' '.join(words)}".rstrip()
