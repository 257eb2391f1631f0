"""The frames of a connection that belong to a traced address.

AMQP 1.0: frames of links with that address, and those session frames that concern all links. AMQP 0-9-1 has
no links: a channel is shown from the method on that names the queue or exchange, except for its publishes to
other addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from amqp10broker.observe.frames.reader import TracedFrame
from amqp10broker.protocols.amqp091.methods import BasicPublish, ChannelCloseOk
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Role,
    Transfer,
)
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
        # By direction ("<-" has the client's handles, "->" ours), channel and handle.
        self._handles: set[tuple[str, int, int]] = set()
        self._names: dict[tuple[int, str, bool], bool] = {}
        self._asked: dict[tuple[int, str, bool], int] = {}

    def know(
        self, channel: int, handle: int | None, remote_handle: int | None, addresses: Iterable[str]
    ) -> None:
        """A link that is attached already."""
        if any(map(self._matches, addresses)):
            if remote_handle is not None:
                self._handles.add(("<-", channel, remote_handle))
            if handle is not None:
                self._handles.add(("->", channel, handle))

    def shows(self, arrow: str, frame: TracedFrame) -> bool:
        """Whether a frame is shown; it must be called with each, in order."""
        channel = frame.channel
        match frame.body:
            case Attach() as attach:
                return self._attach(arrow, channel, attach)
            case Detach() as detach:
                place = (arrow, channel, detach.handle)
                shown = place in self._handles
                self._handles.discard(place)
                return shown
            case Transfer() as transfer:
                return (arrow, channel, transfer.handle) in self._handles
            case Flow() as flow if flow.handle is not None:
                return (arrow, channel, flow.handle) in self._handles
            case Flow() | Disposition():
                return any(each[1] == channel for each in self._handles)
            case End():
                shown = any(each[1] == channel for each in self._handles)
                self._forget(arrow, channel)
                return shown
            case Begin():
                self._forget(arrow, channel)
                return False
            case _:
                return False

    def _attach(self, arrow: str, channel: int, attach: Attach) -> bool:
        # The client's sender and our receiver are the two ends of one link.
        sends = (attach.role == Role.SENDER) == (arrow == "<-")
        link = (channel, attach.name, sends)
        terminus: Any = attach.target if sends else attach.source
        address = getattr(terminus, "address", None)
        shown = self._names.pop(link, False) or (isinstance(address, str) and self._matches(address))
        if arrow == "<-":
            self._names[link] = shown
            self._asked[link] = attach.handle
        else:
            asked = self._asked.pop(link, None)
            if shown and asked is not None:  # a dynamic address is known from the answer on
                self._handles.add(("<-", channel, asked))
        if shown:
            self._handles.add((arrow, channel, attach.handle))
        return shown

    def _forget(self, arrow: str, channel: int) -> None:
        self._handles = {each for each in self._handles if each[:2] != (arrow, channel)}
        for known in (self._names, self._asked):
            for link in [each for each in known if each[0] == channel]:
                del known[link]


class ChannelScope:
    """The traced frames of an AMQP 0-9-1 connection."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._channels: set[int] = set()
        self._elsewhere: set[tuple[str, int]] = set()

    def know(self, channel: int, queues: Iterable[str]) -> None:
        """A channel that is there already, and the queues that it consumes from."""
        if any(self._matches(queue_address(queue)) for queue in queues):
            self._channels.add(channel)

    def shows(self, arrow: str, frame: TracedFrame) -> bool:
        """Whether a frame is shown; it must be called with each, in order."""
        channel, method = frame.channel, frame.body
        content = (arrow, channel)
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
