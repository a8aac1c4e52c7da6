"""What both ends of a websocket agree on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msprobe.errors import HardwareError

PROTOCOL = "msprobe.online.1"
NOT_WANTED, LATER = 1008, 1013  # why a connection is closed: for good, or until another one has ended
SECONDS_TO_OPEN = 10.0

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
        import websockets  # noqa: F401
    except ImportError:
        raise HardwareError(
            "The online check over the network needs the package websockets; pip install websockets, or "
            "exchange calls through a folder (nfs_path)."
        ) from None
