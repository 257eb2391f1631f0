"""What does a transacted publish of 100 messages a commit cost beside the plain one?

One session publishes 100 unsettled messages and waits until it has the outcome of each, again and again.
Transacted, the same is one transaction: the discharge follows the messages, and the declare of the next one
with it, so that both wait once for each 100. In turns in one run; what is compared is the broker's processor
time a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, Self

from amqp10broker.amqp10.performatives import (
    AMQP_VALUE,
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Source,
    TransactionalState,
    Transfer,
)
from amqp10broker.amqp10.performatives import Target as Terminus
from benchmarks import spec, wire
from benchmarks.broker_process import Target
from benchmarks.cases import ratios
from benchmarks.errors import BenchmarkError, MeasureError, PeerError
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.peer import handshake
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row

MESSAGES: Final = 100
"""A commit has so many."""
TRANSACTED: Final = "transacted"
PLAIN: Final = "plain"

_WORK: Final[dict[str, tuple[str, ...]]] = {
    "classic": ("classic",),
    "two classic": ("classic", "classic"),
    "quorum": ("quorum",),
    "classic and stream": ("classic", "stream"),
}
"""Kinds of queues; messages go to them in turns."""

_CONTROL: Final = 0
_READ_BYTES: Final = 256 * 1024
_U32: Final = Struct(">I")
_BY_PEER: Final = (Close, End, Detach)


class Publisher:
    """One session of one connection, with a control link and a link to each queue."""

    def __init__(self, endpoint: spec.Endpoint, addresses: Sequence[str], message: bytes) -> None:
        """Connect and attach.

        Args:
            endpoint: of the broker.
            addresses: of the queues.
            message: what is published, encoded.
        """
        self._socket = handshake(endpoint).socket
        self._addresses = addresses
        self._message = message
        self._data = b""
        self._next_id = 0
        self._window = 0
        self._txn_id = b""
        self._unanswered: set[int] = set()

    def __enter__(self) -> Self:
        """Begin the session, and wait until each link has credit."""
        begin = Begin(next_outgoing_id=0, incoming_window=2048, outgoing_window=2048, handle_max=16)
        termini: list[Coordinator | Terminus] = [
            Coordinator(),
            *(Terminus(address=each) for each in self._addresses),
        ]
        attaches = [
            Attach(
                name=f"publish-{handle}",
                handle=handle,
                role=False,
                source=Source(),
                target=target,
                initial_delivery_count=0,
            )
            for handle, target in enumerate(termini)
        ]
        frames: list[Composite] = [begin, *attaches]
        self._socket.sendall(b"".join(wire.frame(each) for each in frames))
        granted: set[int] = set()
        while len(granted) < len(attaches):
            for each in self._read():
                if isinstance(each, Flow) and each.handle is not None and each.link_credit:
                    granted.add(each.handle)
        return self

    def __exit__(self, *error: object) -> None:
        """Close in order."""
        with self._socket as stream:
            stream.sendall(wire.frame(Close()))

    def plain(self) -> None:
        """Publish `MESSAGES`, and wait for the outcome of each."""
        self._send(self._transfers(None))

    def begin(self) -> None:
        """Declare the first transaction."""
        self._send([self._request(Declare())])

    def transacted(self) -> None:
        """The same in a transaction, with the commit and the next declare."""
        frames = self._transfers(TransactionalState(txn_id=self._txn_id))
        frames += [self._request(Discharge(txn_id=self._txn_id)), self._request(Declare())]
        self._send(frames)

    def _transfers(self, state: TransactionalState | None) -> list[bytes]:
        links = len(self._addresses)
        return [self._transfer(1 + at % links, self._message, state) for at in range(MESSAGES)]

    def _request(self, body: Declare | Discharge) -> bytes:
        return self._transfer(_CONTROL, bytes((0x00, 0x53, AMQP_VALUE)) + body.encode(), None)

    def _transfer(self, handle: int, payload: bytes, state: TransactionalState | None) -> bytes:
        number = self._next_id
        self._next_id += 1
        self._unanswered.add(number)
        transfer = Transfer(handle=handle, delivery_id=number, delivery_tag=_U32.pack(number), state=state)
        return wire.frame(transfer.encode() + payload)

    def _send(self, frames: Sequence[bytes]) -> None:
        if len(frames) > self._window:
            raise PeerError(f"the broker's incoming-window is {self._window}: too small for a batch")
        self._window -= len(frames)
        self._socket.sendall(b"".join(frames))
        while self._unanswered:
            for each in self._read():
                if isinstance(each, Disposition):
                    self._answered(each)

    def _answered(self, answer: Disposition) -> None:
        state = answer.state
        if isinstance(state, Declared):
            self._txn_id = state.txn_id
        else:
            outcome = state.outcome if isinstance(state, TransactionalState) else state
            if not isinstance(outcome, Accepted):
                raise PeerError(f"the broker has not accepted: {state}")
        last = answer.first if answer.last is None else answer.last
        self._unanswered.difference_update(range(answer.first, last + 1))

    def _read(self) -> Iterator[Composite]:
        """What the broker sends next; at least one frame's end is waited for."""
        some = self._socket.recv(_READ_BYTES)
        if not some:
            raise PeerError("the broker closed the socket")
        data, position = self._data + some, 0
        while len(data) - position >= 4:
            size = _U32.unpack_from(data, position)[0]
            if len(data) - position < size:
                break
            if size > 8:
                body = wire.decode_performative(data, position + 8)[0]
                if isinstance(body, _BY_PEER):
                    raise PeerError(f"the broker ended it: {wire.describe_error(body.error)}")
                if isinstance(body, Begin):
                    self._window = body.incoming_window
                elif isinstance(body, Flow):
                    seen = body.next_incoming_id or 0
                    self._window = (seen + body.incoming_window - self._next_id) & 0xFFFFFFFF
                yield body
            position += size
        self._data = data[position:]


@contextmanager
def _publisher(context: Context, target: Target, work: str) -> Iterator[Publisher]:
    kinds = dict(enumerate(_WORK[work]))
    names = {number: f"bench-{number}" for number in kinds}
    with Queues(target.endpoint) as known:
        known.declare({names[number]: kind for number, kind in kinds.items()})
    message = wire.data_message(bytes(context.size_bytes), durable=context.durable)
    with Publisher(target.endpoint, [f"/queues/{name}" for name in names.values()], message) as publisher:
        yield publisher


def _measure(context: Context, work: str, variant: str) -> Row:
    case = f"{work}: {variant}"
    with context.target() as target, _publisher(context, target, work) as publisher:
        if variant == TRANSACTED:
            publisher.begin()
        batch = publisher.transacted if variant == TRANSACTED else publisher.plain
        _repeat(batch, context.warmup_s)
        cpu_before, load_before, began = target.cpu_s(), time.process_time(), time.monotonic()
        batches = _repeat(batch, context.duration_s)
        seconds, load_s = time.monotonic() - began, time.process_time() - load_before
        cpu_after, rss_bytes = target.cpu_s(), target.rss_bytes()
    messages = batches * MESSAGES
    cpu_s = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    return {
        "case": case,
        "target": "broker",
        "seconds": seconds,
        "messages": messages,
        "rate_per_s": messages / seconds,
        "commits_per_s": batches / seconds if variant == TRANSACTED else None,
        "cpu_us": None if cpu_s is None else cpu_s / messages * 1e6,
        "load_cpu_us": load_s / messages * 1e6,
        "broker_busy": None if cpu_s is None else cpu_s / seconds,
        "rss_mb": None if rss_bytes is None else rss_bytes / 1e6,
    }


def _repeat(batch: Callable[[], None], seconds: float) -> int:
    """Do it again and again for so long, at least once; how often."""
    end, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < end:
        batch()
        count += 1
    return count


def run(context: Context) -> Outcome:
    """Measure every work both ways, and the ratio of their costs."""
    if not context.own:
        raise MeasureError("transactions are measured at brokers that are started here")
    samples: list[Row] = []
    for _ in range(context.repetitions):
        for work in _WORK:
            for variant in (PLAIN, TRANSACTED):
                try:
                    row = _measure(context, work, variant)
                except BenchmarkError as error:
                    context.say(f"broker {work}: {variant} failed: {error}")
                    row = {"case": f"{work}: {variant}", "target": "broker", "failed": str(error)}
                else:
                    context.say_row(row)
                samples.append(row)
    columns = (*STANDARD_COLUMNS, "commits_per_s", "ratio_plain")
    outcome = Outcome(columns, context.described_settings(), samples)
    outcome.samples += ratios(samples, list(_WORK), TRANSACTED, PLAIN, "ratio_plain")
    return outcome


BENCHMARK = Benchmark(
    "transactions", "What does a transacted publish of 100 messages a commit cost beside the plain one?", run
)
