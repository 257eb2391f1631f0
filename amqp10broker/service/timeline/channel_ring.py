"""The frames of one channel of AMQP 0-9-1, in a ring, each with what the channel was behind it.

A channel handles its methods one after another, so what it shows between two of them is exact: it is looked
at when the next frame comes, or when the turn is over, and nothing needs to be replayed. A content is one
frame here, with its header and body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from amqp10broker.amqp091 import methods
from amqp10broker.amqp091.items import AckRun, MethodFrame, PublishRun
from amqp10broker.amqp091.methods import decode_method
from amqp10broker.service.channels.channel import BrokerChannel, ChannelState
from amqp10broker.service.channels.consumer import Consumer
from amqp10broker.service.timeline.records import HEAD_BYTES
from amqp10broker.service.timeline.ring import RECORDS_MAX, TEXT_CHARACTERS_MAX
from amqp10broker.service.timeline.shown import Tell

NAMES: Final = (
    *("prefetch", "unacknowledged", "queue_credit", "unsent"),
    *("global_prefetch", "channel_unacknowledged", "unconfirmed", "reader_credit"),
    *("writer_waiting_bytes", "writer_blocked"),
)
"""Of what is drawn: those of `ConsumerView`, `ChannelView` and `ConnectionView`."""

Around = Callable[[], tuple[int, int, bool]]
"""Tells reader_credit, the bytes that wait for the socket, and whether deliveries wait for it."""
Values = tuple[Any, ...]

_LIGHT: Final = frozenset(
    {methods.BasicAck, methods.BasicNack, methods.BasicReject, methods.BasicQos, methods.BasicQosOk}
)
"""Methods without fields of any length; others are kept as their text."""
_CONFIRMS: Final = frozenset({methods.BasicAck, methods.BasicNack})
_METHOD_AT: Final = 7
"""In a method's frame: behind type, channel and size."""
LOOK_AFTER: Final = 512
"""Records after which it is asked whether anybody still looks."""


class ChannelRecord:
    """One frame, or several alike.

    Attributes:
        at_ns: when.
        direction: ``in``, ``out``; None: no frame.
        link: it is about the consumer, or there is none in particular.
        what: a method, or a text.
        frames: how many.
        head: of the content.
        values: what the channel was behind it, as `_look` saw it.
    """

    __slots__ = ("at_ns", "direction", "frames", "head", "link", "values", "what")

    def __init__(
        self, at_ns: int, direction: str | None, what: Any, frames: int, head: bytes, link: bool
    ) -> None:
        self.at_ns = at_ns
        self.direction = direction
        self.what = what
        self.frames = frames
        self.head = head
        self.link = link
        self.values: Values = ()


class ChannelRing:
    """A tap of one channel, for one consumer or for all.

    Attributes:
        link: the consumer, or the channel.
        ended: why nothing more comes; None while it goes on.
    """

    names = NAMES

    def __init__(
        self,
        channel: BrokerChannel,
        consumer: Consumer | None,
        around: Around,
        now_ns: Callable[[], int],
        tell: Tell,
        on_segment: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin between two turns of an open channel.

        Args:
            channel: which.
            consumer: of it, whose prefetch and credit are shown; None: none in particular.
            around: looks at what the connection does for the channel.
            now_ns: the time, by a clock that never goes back.
            tell: makes a line of a method.
            on_segment: told now and then while it records, and when it ends by itself.
        """
        self._channel = channel
        self._consumer = consumer
        self._around = around
        self._now_ns = now_ns
        self._tell = tell
        self._on_segment = on_segment
        self.link: Consumer | BrokerChannel = channel if consumer is None else consumer
        self.ended: str | None = None
        self._consuming = channel.consuming
        self._publishing = channel.publishing
        self._held = channel.consuming.held
        self._records: deque[ChannelRecord] = deque()
        self._gone = 0
        self._values = self._before = self._look()
        self._open: ChannelRecord | None = None

    def _look(self) -> Values:
        held, publishing, consumer = self._held, self._publishing, self._consumer
        if consumer is None:
            return (
                held.outstanding,
                publishing.untold,
                self._consuming.global_prefetch,
                *self._around(),
            )
        credit = consumer.credit
        return (
            held.outstanding,
            publishing.untold,
            self._consuming.global_prefetch,
            *self._around(),
            consumer.unacked,
            credit.granted,
            credit.waiting,
        )

    def _drawn(self, seen: Values) -> Values:
        """What was seen, in the order of `NAMES`."""
        of_channel = seen[2], seen[0], seen[1], *seen[3:6]
        if self._consumer is None:
            return (None, None, None, None, *of_channel)
        unacked, granted, waiting = seen[6:]
        return (self._consumer.terms.prefetch, unacked, max(0, granted + waiting), waiting, *of_channel)

    # --- the tap ----------------------------------------------------------------------------------

    def received(self, item: object) -> None:
        """See `ChannelTap`."""
        if type(item) is PublishRun:
            to = f"exchange={item.exchange} routing-key={item.routing_key}"[:TEXT_CHARACTERS_MAX]
            head = item.bodies[0][:HEAD_BYTES] if item.bodies else b""
            self._begin("in", f"basic.publish {to}", len(item.bodies), head)
        elif type(item) is AckRun:
            first, last = item.tags[0], item.tags[-1]
            text = f"basic.ack delivery-tag={first[0]}" + (" multiple=true" if first[1] else "")
            if len(item.tags) > 1:
                text += f" .. delivery-tag={last[0]}" + (" multiple=true" if last[1] else "")
            self._begin("in", text, len(item.tags))
        elif type(item) is MethodFrame:
            self._begin("in", self._kept(item.method), 1)
        else:
            method = getattr(item, "method", None)
            self._begin("in", type(item).__name__ if method is None else self._kept(method), 1)

    def sent(self, method: methods.Method) -> None:
        """See `ChannelTap`."""
        confirm = type(method) in _CONFIRMS
        self._begin("out", self._kept(method), 1, finish=not confirm or self._open is not None)

    def handled(self) -> None:
        """See `ChannelTap`."""
        if self._open is not None:
            self._finish()

    def sent_content(self, frames: bytes) -> None:
        """See `ChannelTap`: basic.get-ok or basic.return."""
        method = decode_method(frames[_METHOD_AT : _METHOD_AT + int.from_bytes(frames[3:_METHOD_AT], "big")])
        # What the client holds of a basic.get was counted before this: it is this frame's doing.
        self._begin("out", self._kept(method), 1, finish=self._open is not None)

    def delivered(self, consumer: Consumer, first_tag: int, deliveries: int) -> None:
        """See `ChannelTap`."""
        last = f"..{first_tag + deliveries - 1}" if deliveries > 1 else ""
        text = f"basic.deliver consumer-tag={consumer.terms.tag} delivery-tag={first_tag}{last}"
        self._begin("out", text, deliveries, mine=self._consumer in (None, consumer))

    def _kept(self, method: methods.Method) -> Any:
        return method if type(method) in _LIGHT else self._tell(method)[:TEXT_CHARACTERS_MAX]

    def _begin(
        self,
        direction: str | None,
        what: Any,
        frames: int,
        head: bytes = b"",
        *,
        mine: bool = True,
        finish: bool = True,
    ) -> None:
        if finish:
            self._finish()
        record = ChannelRecord(self._now_ns(), direction, what, frames, head, mine)
        self._records.append(record)
        self._open = record
        if len(self._records) > RECORDS_MAX:
            self._before = self._records.popleft().values
            self._gone += 1
        if (self._gone + len(self._records)) % LOOK_AFTER == 0:
            self._on_segment()

    def _finish(self) -> None:
        """What the channel is now is what the last frame has made of it, or what queues did since."""
        values = self._look()
        if self._open is None and values != self._values:
            self._begin(None, "", 0, finish=False)
        if self._open is not None:
            self._open.values = self._values = values
            self._open = None

    def turn_over(self) -> None:
        """The channel has had its turn, or somebody asks."""
        self._finish()
        if self._channel.state is not ChannelState.OPEN:
            self.end("the channel is closed")
        elif self._consumer is not None and self._consumer.cancelled:
            self.end("the consumer is cancelled")

    def end(self, reason: str) -> None:
        """Nothing more is to be recorded; what was stays."""
        if self.ended is None:
            self.ended = reason
            if self._open is not None:
                self._open.values, self._open = self._values, None
            self._on_segment()

    # --- who asks ---------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The number of the oldest record that is there."""
        return self._gone

    @property
    def next(self) -> int:
        """The number that the next record will have."""
        return self._gone + len(self._records)

    def before(self, number: int) -> Values:
        """What the channel was before a record that is there, or before the next one."""
        place = number - self._gone
        return self._drawn(self._before if place <= 0 else self._records[place - 1].values)

    def steps(self, number: int, limit: int) -> Iterator[tuple[int, bool, Values, ChannelRecord]]:
        """So many records from one on: time, whether it is about the consumer, values behind it, and it."""
        place = number - self._gone
        for record in islice(self._records, place, place + limit):
            yield record.at_ns, record.link, self._drawn(record.values), record

    def shown(self, record: ChannelRecord) -> dict[str, Any]:
        """What a step was: see `document`."""
        what = record.what
        return {
            "direction": record.direction,
            "frames": record.frames,
            "frame": what if isinstance(what, str) else self._tell(what),
            "bytes": record.head.hex(),
            "marks": ["qos"] if isinstance(what, methods.BasicQos) else [],
        }
