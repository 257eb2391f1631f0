"""A virtual host whose links and channels are all watched, from their beginning on (`watches`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.operations.snapshot import FollowedView, WatchView
from amqp10broker.runtime.connections.session_task import ChannelTask, SessionTask
from amqp10broker.sessions.amqp091.channel import ChannelState
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher

FOLLOWED_MAX: Final = 256
"""Links and channels of one virtual host that are watched; each may keep ten megabytes."""


@dataclass(eq=False, slots=True)
class Followed:
    """One that is followed. `parts`: sessions that have begun since, and channels that are not open yet, with
    what looks for new links after each turn.
    """

    vhost: str
    parts: dict[SessionTask | ChannelTask, Callable[[], None]] = field(default_factory=dict)
    begun: int = 0
    left_out: int = 0
    _known: set[int] = field(default_factory=set)

    def has_room(self) -> bool:
        """Whether one more may be watched; it counts."""
        if self.begun >= FOLLOWED_MAX:
            self.left_out += 1
            return False
        self.begun += 1
        return True

    def new_links(self, session: SessionTask) -> Iterator[tuple[str, LinkConsumer | LinkPublisher]]:
        """Links that are attached and not watched yet, each with the role of its client."""
        service = session.service
        if service.over:
            del self.parts[session]
        ends: list[tuple[str, LinkConsumer | LinkPublisher]] = [
            ("receiver", each) for each in service.consumers
        ]
        ends += [("sender", each) for each in service.publishers]
        for role, end in ends:
            # Its watch keeps a link alive, so that no other has its id.
            if end.link.attached and id(end.link) not in self._known:
                self._known.add(id(end.link))
                if self.has_room():
                    yield role, end

    def is_new(self, channel: ChannelTask) -> bool:
        """Whether a channel is open and not watched yet; true once for each."""
        if channel.service.state is not ChannelState.OPEN:
            return False
        del self.parts[channel]
        return self.has_room()

    def view(self, watches: Iterable[WatchView]) -> FollowedView:
        """Return its view for front ends."""
        return FollowedView(self.vhost, tuple(watches), self.left_out)
