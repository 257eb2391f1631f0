"""The frames of a connection that belong to a traced address.

AMQP 1.0: frames of links with that address, and those session frames that concern all links. AMQP 0-9-1 has
no links: a channel is shown from the method on that names the queue or exchange, except for its publishes to
other addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from amqp10broker.observe.frames.link_state import AttachObserved, Direction, ObservedConnection, ObservedLink
from amqp10broker.observe.frames.reader import TracedFrame
from amqp10broker.protocols.amqp091.methods import BasicPublish, ChannelCloseOk
from amqp10broker.protocols.amqp10.performatives import Detach, Disposition, End, Flow, Transfer
from amqp10broker.routing.address import BadAddress, QueueAddress, parse, queue_address

Matches = Callable[[str], bool]

EXCHANGES: Final = "/exchanges/"


def matching(pattern: str) -> Matches:
    """Whether an address is meant: as it was written, or as that of the queue that a bare name names."""

    def matches(address: str) -> bool:
        return any(fnmatchcase(each, pattern) for each in _ways_to_write(address))

    return matches


def _ways_to_write(address: str) -> Iterator[str]:
    yield address
    try:
        parsed = parse(address)
    except BadAddress:
        return
    if isinstance(parsed, QueueAddress):
        yield queue_address(parsed.queue)


class LinkScope:
    """The traced frames of an AMQP 1.0 connection."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._state = ObservedConnection()
        self._shown: set[ObservedLink] = set()

    def know(self, channel: int, links: Mapping[ObservedLink, Iterable[str]]) -> None:
        """Add a session that has begun, with its links and all names of their addresses."""
        self._state.know(channel, *links)
        self._shown |= {link for link, names in links.items() if any(map(self._matches, names))}

    def shows(self, direction: Direction, frame: TracedFrame) -> bool:
        """Whether a frame is shown; it must be called with each, in order."""
        body, channel = frame.body, frame.channel
        session = self._state.session(direction, channel)
        links: list[ObservedLink] = []
        if session is not None and isinstance(body, Transfer | Flow | Detach) and body.handle is not None:
            link = session.links[direction].get(body.handle)
            links = [] if link is None else [link]
        elif session is not None and isinstance(body, Flow | Disposition | End):
            links = session.all_links()
        for event in self._state.apply(direction, channel, body):
            if isinstance(event, AttachObserved):
                # A dynamic address is known from the answer on.
                links = [event.link]
                if self._matches(event.link.address):
                    self._shown.add(event.link)
        shown = not self._shown.isdisjoint(links)
        if isinstance(body, Detach | End):
            self._shown &= {link for each in self._state.sessions() for link in each.all_links()}
        return shown


class ChannelScope:
    """The traced frames of an AMQP 0-9-1 connection."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._channels: set[int] = set()
        self._elsewhere: set[tuple[Direction, int]] = set()

    def know(self, channel: int, queues: Iterable[str]) -> None:
        """A channel that is there already, and the queues that it consumes from."""
        if any(self._matches(queue_address(queue)) for queue in queues):
            self._channels.add(channel)

    def shows(self, direction: Direction, frame: TracedFrame) -> bool:
        """Whether a frame is shown; it must be called with each, in order."""
        channel, method = frame.channel, frame.body
        content = (direction, channel)
        if method is None:  # a content's header or body, or a heartbeat
            return channel in self._channels and content not in self._elsewhere
        self._elsewhere.discard(content)
        named = any(map(self._matches, _addresses(method)))
        if named:
            self._channels.add(channel)
        elif isinstance(method, BasicPublish):
            self._elsewhere.add(content)
            return False
        shown = channel in self._channels
        if isinstance(method, ChannelCloseOk):
            self._channels.discard(channel)
        return shown


def _addresses(method: object) -> Iterator[str]:
    queue = getattr(method, "queue", "")
    if queue:
        yield queue_address(queue)
    exchange = getattr(method, "exchange", "")
    if exchange:
        yield f"{EXCHANGES}{exchange}"
        yield f"{EXCHANGES}{exchange}/{getattr(method, 'routing_key', '')}"
    elif isinstance(method, BasicPublish):
        yield queue_address(method.routing_key)
