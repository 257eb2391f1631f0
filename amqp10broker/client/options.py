"""What a connection asks for, and the defaults of everything that a client waits for."""

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
"""Default of everything that has to come from the broker sooner or later."""
CLOSE_TIMEOUT_S: Final = 5.0
"""For the broker's answer to our close; the socket is closed after it in any case."""
IN_FLIGHT_MAX: Final = 1024
"""Default of messages handed over and without outcome; more than the broker's default credit asks for."""
CREDIT: Final = 100
"""Default of a receiver's credit."""
READ_BYTES: Final = 262_144
"""Taken from the socket at once."""

_container_numbers = itertools.count(1)


def made_up_container_id() -> str:
    """A container id that is unique as long as processes are: host, process, number within it."""
    return f"amqp10broker-client@{socket.gethostname()}-{os.getpid()}-{next(_container_numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What a connection asks for; the defaults suit most programs.

    Raises:
        ValueError: one of them fits no frame; the text says which.
    """

    container_id: str = field(default_factory=made_up_container_id)
    """Names this program in the broker's status; unique, for link names are unique within it."""
    hostname: str | None = None
    """Of the open frame; ``vhost:NAME`` chooses a virtual host. None: `connect` takes the host's name."""
    frame_size_max_bytes: int = 1_048_576
    """Largest frame that we take, at least 512."""
    channel_max: int = 255
    """Sessions less one."""
    handle_max: int = 4_294_967_295
    """Links of a session less one, as far as we are concerned."""
    incoming_window: int = 2048
    """Transfer frames that the broker may have under way to one session; re-opened at half."""
    idle_timeout_ms: int = 60_000
    """Silence of the broker after which we give it up; 0 for never."""
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
        """The same for a connection to this host: its name stands in the open frame unless another does."""
        return self if self.hostname is not None else replace(self, hostname=host)
