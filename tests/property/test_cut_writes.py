"""What a client writes has the same outcome in one write and frame by frame, its faults included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from amqp10broker.config import Config
from amqp10broker.protocols.amqp10.frames import FrameReader
from amqp10broker.protocols.amqp10.performatives import (
    Begin,
    Detach,
    Disposition,
    End,
    Target,
    TransactionalState,
)
from amqp10broker.queues.commands import Command, Publish
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.askers import new_asker
from tests.support.declaring import declare
from tests.support.pairing import Host
from tests.support.rawframes import FrameCutter, attach_sender, frame, transfer
from tests.support.surroundings import make_catalog, make_context

LINKS = {
    0: "/queues/q",
    1: "/queues/q",
    2: "/exchanges/amq.direct/nowhere",  # its messages are answered at once: they are released
    3: None,  # the anonymous terminus: each message has its own way
}
MAX_BYTES = 60

Step = tuple[str, int, int]
"""What kind of frame; the handle; the delivery-id."""

KINDS = (*["plain"] * 6, "settled", "bad", "large", "txn", "first", "aborted", "detach")


def encoded(step: Step) -> bytes:
    kind, handle, number = step
    fields: dict[str, Any] = {}
    if kind == "txn":
        fields["state"] = TransactionalState(txn_id=b"unknown!")
    elif kind in ("first", "aborted"):
        fields[{"first": "more", "aborted": "aborted"}[kind]] = True
    elif kind == "detach":
        return frame(0, Detach(handle=handle, closed=True))
    body = b"m" * (MAX_BYTES if kind == "large" else 3)
    if kind == "bad":
        return transfer(handle, number, b"\x00\x53\x75\xa0", raw=True)
    return transfer(handle, number, body, settled=kind == "settled", **fields)


def outcome(writes: Sequence[bytes]) -> dict[str, Any]:
    """What becomes of it: what queues were told of each link, and what the client was."""
    catalog = make_catalog(Host())
    declare(catalog, "/", "q")
    config = Config(max_message_size_bytes=MAX_BYTES)
    context = make_context(catalog, config, new_asker("client"), object())
    begin = Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)
    session = BrokerSession(0, begin, context, frame_size_max=4_096, alarm=False)
    reader, cutter = FrameReader(), FrameCutter()
    letters: list[Command] = []
    told: dict[int, set[str]] = {}  # those of an id that was used twice may be told together
    ends: list[Any] = []
    attaches = b"".join(
        attach_sender(handle, str(address), target=Target(address=address))
        for handle, address in LINKS.items()
    )
    for data in (attaches, *writes):
        for _, items in reader.read(data):
            session.receive(items)
        letters += [command for _, command in session.take_commands()]
        for got in cutter.feed(b"".join(session.take_output())):
            if isinstance(got.body, Disposition):
                last = got.body.first if got.body.last is None else got.body.last
                for number in range(got.body.first, last + 1):
                    told.setdefault(number, set()).add(str(got.body.state))
            elif isinstance(got.body, Detach | End):
                ends.append((type(got.body), getattr(got.body, "handle", None), got.body.error))
    published: dict[Any, list[Any]] = {}
    for letter in letters:
        if isinstance(letter, Publish):
            published.setdefault(letter.publisher.handle, []).extend(
                zip(letter.ids, letter.messages, strict=True)
            )
    return {"published": published, "told": told, "ends": ends}


def steps(*run: Step) -> list[Step]:
    """Behind a frame by which the layout is learned."""
    return [("plain", 0, 100), *run]


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from((0, 0, 0, 1, 2, 3)), st.integers(0, 12)),
        max_size=30,
    )
)
@example(steps(("plain", 0, 1), ("bad", 0, 2), ("plain", 0, 1)))
@example(steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("plain", 0, 3)))
@example(steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("large", 0, 3)))
@example(steps(("plain", 0, 1), ("large", 0, 2), ("plain", 0, 1)))
@example(steps(("txn", 0, 1), ("txn", 0, 2), ("txn", 0, 1)))
@example(steps(("first", 0, 1), ("plain", 0, 1), ("bad", 0, 2), ("plain", 0, 3), ("plain", 0, 3)))
@example(steps(("plain", 2, 1), ("plain", 2, 2), ("plain", 2, 1), ("plain", 2, 1)))
@example(steps(("plain", 1, 1), ("plain", 0, 2), ("bad", 0, 3), ("plain", 0, 1)))
@example([("plain", 2, 0), ("plain", 2, 0), ("plain", 2, 0), ("plain", 2, 3)])
def test_one_write_has_the_outcome_of_single_frames(run: list[Step]) -> None:
    """Faults, ids that are used again, parts of deliveries: where bytes are cut counts for nothing."""
    frames = [encoded(step) for step in run]
    assert outcome([b"".join(frames)]) == outcome(frames)


def test_what_stands_before_an_id_in_flight_is_published() -> None:
    """The session ends with the second of them, and the first has gone to its queue."""
    run = steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("plain", 0, 3))
    got = outcome([b"".join(map(encoded, run))])
    (published,) = got["published"].values()
    assert [number for number, _ in published] == [100, 1, 2]
    assert [kind for kind, _, _ in got["ends"]] == [End]
