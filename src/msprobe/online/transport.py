"""What both ends of a websocket agree on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msprobe.errors import HardwareError

PROTOCOL = "msprobe.online.1"
NOT_WANTED, LATER = 1008, 1013  # why a connection is closed: for good, or until another one has ended
SECONDS_TO_OPEN = 10.0
LARGEST_PART = 1 << 20  # bytes of one frame: others, such as pings, find their place between them

_OLDEST = 16  # the first release that bounds frames as well as messages

SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "compression": None,
        "open_timeout": SECONDS_TO_OPEN,
        "ping_interval": 15,
        "ping_timeout": 30,  # after which a machine that vanished is known to be gone
    }
)


def need_websockets() -> None:
    """Raise if the package is missing."""
    try:
        from websockets.version import version
    except ImportError:
        version = "0"
    if int(version.partition(".")[0]) < _OLDEST:
        raise HardwareError(
            f"The online check over the network needs the package websockets, {_OLDEST} or newer; "
            f"pip install 'websockets>={_OLDEST}', or exchange calls through a folder (nfs_path)."
        )
