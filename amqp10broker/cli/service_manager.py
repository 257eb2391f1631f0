"""Telling the service manager that clients can come in: the protocol of sd_notify(3), one datagram.

systemd gives a unit of ``Type=notify`` the address in the environment; without it nobody is told.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

READY: Final = b"READY=1"
VARIABLE: Final = "NOTIFY_SOCKET"


def tell_ready(environ: Mapping[str, str]) -> None:
    """Say it; a manager that cannot be reached is none of the broker's concerns.

    Args:
        environ: of the process.
    """
    address = environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # of the abstract namespace
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        try:
            manager.sendto(READY, address)
        except OSError:
            return
