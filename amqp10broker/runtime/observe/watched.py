"""The subjects of watches: the link or channel, and the sources of its state that no frame carries."""

from __future__ import annotations

import time
from collections.abc import Callable

from amqp10broker.errors import BadRequest, NotAllowed, NotFound
from amqp10broker.observe.frames.reader import describe_method, describe_performative
from amqp10broker.observe.timeline.channel_ring import ChannelMark, ChannelRing
from amqp10broker.observe.timeline.records import Mark
from amqp10broker.observe.timeline.ring import FrameRing
from amqp10broker.operations.snapshot import WatchView
from amqp10broker.runtime.connections.connection091 import ConnectionTask091
from amqp10broker.runtime.connections.connection10 import Connection10
from amqp10broker.runtime.connections.session_task import ChannelTask, SessionTask
from amqp10broker.sessions.amqp091.channel import ChannelState
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer as Consumer091
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher


def find_link(
    connection: Connection10, name: str | None, channel: int | None, role: str | None
) -> tuple[str, SessionTask, LinkConsumer | LinkPublisher]:
    """An attached link: its client's role, its session, and what has it.

    Raises:
        BadRequest: it has no name.
        NotFound: there is none.
        NotAllowed: there are two.
    """
    number = connection.number
    if name is None:
        raise BadRequest("watch", f"connection {number} speaks AMQP 1.0: name one of its links")
    found: list[tuple[str, SessionTask, LinkConsumer | LinkPublisher]] = []
    for session in connection.parts.values():
        if channel in (None, session.service.session.channel):
            found += [("receiver", session, each) for each in session.service.consumers]
            found += [("sender", session, each) for each in session.service.publishers]
    found = [
        each
        for each in found
        if each[2].link.name == name and role in (None, each[0]) and each[2].link.attached
    ]
    if not found:
        raise NotFound(
            f"link '{name}'",
            f"connection {number} has no attached link '{name}' of that kind: see 'amqp10broker link list'",
        )
    if len(found) > 1:
        raise NotAllowed("watch", f"connection {number} has {len(found)} links '{name}': give the role")
    return found[0]


def find_channel(
    connection: ConnectionTask091, tag: str | None, channel: int | None
) -> tuple[ChannelTask, Consumer091 | None]:
    """An open channel, and one consumer of it if there is a tag. Raises `BadRequest` if the channel has no
    number, and `NotFound` if there is none.
    """
    number = connection.number
    if channel is None:
        raise BadRequest("watch", f"connection {number} speaks AMQP 0-9-1: give the number of a channel")
    part = connection.parts.get(channel)
    if part is None or part.service.state is not ChannelState.OPEN:
        raise NotFound(f"channel {channel}", f"connection {number} has no open channel {channel}")
    if tag is None:
        return part, None
    consumer = part.service.consuming.consumers.get(tag)
    if consumer is None:
        raise NotFound(
            f"consumer '{tag}'",
            f"channel {channel} of connection {number} has no consumer '{tag}': see 'amqp10broker "
            "consumer list'",
        )
    return part, consumer


def look_at_link(
    session: SessionTask, end: LinkConsumer | LinkPublisher, connection: Connection10
) -> Callable[[], Mark]:
    """Return the function that reads a link's queue credit and its writer."""
    writer, output = connection.writer, session.output
    if isinstance(end, LinkConsumer):
        credit = end.credit
        return lambda: (
            *(credit.granted, credit.waiting, writer.waiting_bytes, output.blocked),
            *(end.queue_credit, _why(end)),
        )
    limited = end.link.credit
    return lambda: (0, 0, writer.waiting_bytes, output.blocked, limited.limit, _why(end))


def _why(end: LinkConsumer | LinkPublisher) -> str | None:
    return None if end.auto is None else end.auto.auto.why


def look_at_channel(
    channel: ChannelTask, connection: ConnectionTask091, consumer: Consumer091 | None
) -> Callable[[], ChannelMark]:
    """Return the function that reads a channel's reader credit, writer, and consumer's queue credit."""
    writer, output, reader = connection.writer, channel.output, channel.credit
    if consumer is None:
        return lambda: (reader.credit, writer.waiting_bytes, output.blocked, 0, 0, False)
    credit = consumer.credit
    return lambda: (
        reader.credit,
        writer.waiting_bytes,
        output.blocked,
        credit.granted,
        credit.waiting,
        credit.closed,
    )


def watch_of_link(
    watch: int,
    now_ns: Callable[[], int],
    on_segment: Callable[[], None],
    connection: Connection10,
    role: str,
    session: SessionTask,
    end: LinkConsumer | LinkPublisher,
) -> tuple[WatchView, FrameRing]:
    """Return the view of a new watch of this number, and the receiver of the link's frames."""
    engine, link = session.service.session, end.link
    ring = FrameRing(
        engine, link, look_at_link(session, end, connection), now_ns, describe_performative, on_segment
    )
    queue = None if end.queue is None else end.queue.name
    whose = watch, connection.number, connection.user, engine.channel
    times = now_ns(), time.time_ns(), connection.client_name
    return WatchView(*whose, link.name, role, link.remote_handle, end.address, queue, *times), ring


def watch_of_channel(
    watch: int,
    now_ns: Callable[[], int],
    on_segment: Callable[[], None],
    connection: ConnectionTask091,
    channel: ChannelTask,
    consumer: Consumer091 | None,
) -> tuple[WatchView, ChannelRing]:
    """The same of a channel, or of one consumer of it."""
    look = look_at_channel(channel, connection, consumer)
    ring = ChannelRing(channel.service, consumer, look, now_ns, describe_method, on_segment)
    tag, role, queue = (
        (None, "channel", None) if consumer is None else (consumer.terms.tag, "consumer", consumer.queue.name)
    )
    whose = watch, connection.number, connection.user, channel.service.number
    times = now_ns(), time.time_ns(), connection.client_name
    return WatchView(*whose, tag, role, None, None, queue, *times), ring
