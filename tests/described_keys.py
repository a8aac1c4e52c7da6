"""What a recording holds of the content of an array beside its statistics."""

from __future__ import annotations

import base64
from typing import Any

from msprobe.kernels import described_of


def described_keys(array: Any) -> dict[str, str | None]:
    """The hash, and the brief sketch of numbers that have one, as a file holds them."""
    _, digest, sketch = described_of(array)
    if sketch is None:
        return {"hash": digest}
    return {"hash": digest, "sketch": f"cs16:{base64.b64encode(sketch).decode('ascii')}"}
