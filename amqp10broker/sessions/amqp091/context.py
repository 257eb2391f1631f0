"""The services of the broker that a channel uses."""

from __future__ import annotations

from collections.abc import Collection

from amqp10broker.dataclass import dataclass
from amqp10broker.sessions.context import EndpointContext


@dataclass(slots=True, kw_only=True)
class ChannelContext(EndpointContext):
    """The context of one channel."""

    capabilities: Collection[str]
    frame_max: int
