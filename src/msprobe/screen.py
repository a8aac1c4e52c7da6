"""Text from files and from the network on a screen: control characters must not steer the terminal."""

from __future__ import annotations

import re

# Control characters, and those that turn the direction of writing or end a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(line: str) -> str:
    """The line with each such character written out, as \\x1b."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], line)
