"""Readiness notification of the service manager: the protocol of sd_notify(3), one datagram.

systemd sets the address in the environment for a unit of ``Type=notify``; without it nothing is sent.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from amqp10broker import portable

READY: Final = b"READY=1"
VARIABLE: Final = "NOTIFY_SOCKET"


def tell_ready(environ: Mapping[str, str]) -> None:
    """Send the notification; failures are ignored."""
    address = environ.get(VARIABLE, "")
    if portable.UNIX is None or not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # of the abstract namespace
    with socket.socket(portable.UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        try:
            manager.sendto(READY, address)
        except OSError:
            return
