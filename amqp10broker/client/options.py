"""Options of a connection, and the default time-outs of the client."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, Self

from amqp10broker.client.checks import UINT_MAX, check_integer, check_text, fields
from amqp10broker.dataclass import dataclass

TIMEOUT_S: Final = 30.0
"""Default time-out of every wait for the broker."""
CLOSE_TIMEOUT_S: Final = 5.0
"""Time-out of the broker's answer to a close; the socket is closed after it in any case."""
IN_FLIGHT_MAX: Final = 1024
"""Default of messages in flight without outcome; more than the broker's default credit."""
CREDIT: Final = 100
READ_BYTES: Final = 262_144
"""Bytes read from the socket at once."""

_container_numbers = itertools.count(1)


def made_up_container_id() -> str:
    """Make a container id that is unique among running processes: host, process, number within it."""
    return f"amqp10broker-client@{socket.gethostname()}-{os.getpid()}-{next(_container_numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a connection. Raises `ValueError` if one of them fits no frame."""

    container_id: str = field(default_factory=made_up_container_id)
    """Identifies this program in the broker's status; must be unique, because link names are scoped by it."""
    hostname: str | None = None
    """Of the open frame; ``vhost:NAME`` selects a virtual host. None: `connect` takes the host's name."""
    frame_size_max_bytes: int = 1_048_576
    """Largest frame that the client accepts, at least 512."""
    channel_max: int = 255
    handle_max: int = 4_294_967_295
    """Number of links of a session less one."""
    incoming_window: int = 2048
    """Transfer frames that the broker may have in transit to one session; re-opened at half."""
    idle_timeout_ms: int = 60_000
    """Silence of the broker after which the connection counts as lost; 0 for never."""
    properties: Mapping[str, Any] | None = None
    """Of the open frame; shown by the broker."""

    def __post_init__(self) -> None:
        check_text("container_id", self.container_id)
        check_text("hostname", self.hostname)
        check_integer("frame_size_max_bytes", self.frame_size_max_bytes, 512, UINT_MAX)
        check_integer("channel_max", self.channel_max, 0, 65_535)
        check_integer("handle_max", self.handle_max, 0, UINT_MAX)
        check_integer("incoming_window", self.incoming_window, 1, UINT_MAX)
        check_integer("idle_timeout_ms", self.idle_timeout_ms, 0, UINT_MAX)
        fields("properties", self.properties)

    def to_host(self, host: str) -> Self:
        """`host` is sent in the open frame unless `hostname` is set."""
        return self if self.hostname is not None else replace(self, hostname=host)
