"""Deliveries, their tags, and confirms."""

from __future__ import annotations

from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.amqp091 import make_head, split_head
from amqp10broker.protocols.amqp091.codec import encode_shortstr
from amqp10broker.protocols.amqp091.content import DeliverEncoder, split
from amqp10broker.protocols.amqp091.delivery_tags import Confirm, ConfirmTracker, Taken, Unacked
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, ReplyCode
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties

FRAME_MAX = 8192


def frames_of(data: bytes, channel: int) -> list[Any]:
    """Return all frames, read with pamqp; none is larger than `FRAME_MAX`."""
    found = []
    while data:
        read, on, frame = pamqp.frame.unmarshal(data)
        assert on == channel
        assert read <= FRAME_MAX
        found.append(frame)
        data = data[read:]
    return found


def content_of(frames: list[Any]) -> tuple[Any, Any, bytes]:
    method, header = frames.pop(0), frames.pop(0)
    body = b""
    while frames and isinstance(frames[0], pamqp.body.ContentBody):
        body += frames.pop(0).value
    assert header.body_size == len(body)
    return method, header, body


def head(key: str = "q", *, redelivered: bool = False, **properties: Any) -> bytes:
    return make_head(
        "amq.direct", key, encode_properties(BasicProperties(**properties)), redelivered=redelivered
    )


def encoded(messages: list[tuple[bytes, bytes]], first_tag: int = 1, frame_max: int = FRAME_MAX) -> bytes:
    out: list[bytes] = []
    DeliverEncoder(3, "ctag", frame_max).encode(first_tag, messages, out)
    return b"".join(out)


def test_a_delivery_has_tag_flags_names_and_properties() -> None:
    message = head("key", redelivered=True, content_type="text/plain", delivery_mode=2, headers={"a": "b"})
    frames = frames_of(encoded([(message, b"hello")], 2**40), 3)
    method, header, body = content_of(frames)
    assert (method.name, method.consumer_tag, method.delivery_tag) == ("Basic.Deliver", "ctag", 2**40)
    assert (method.exchange, method.routing_key, method.redelivered) == ("amq.direct", "key", True)
    assert (header.properties.content_type, header.properties.delivery_mode) == ("text/plain", 2)
    assert header.properties.headers == {"a": "b"}
    assert (body, frames) == (b"hello", [])


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "content_framing")
@pytest.mark.parametrize("size", [0, 1, 1024, 1025, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_is_cut_to_the_frame_size(size: int) -> None:
    """The body takes as few frames as possible; an empty one takes none."""
    messages = [(head(), bytes([number]) * size) for number in range(3)]
    frames = frames_of(encoded(messages), 3)
    assert len(frames) == 3 * (2 + -(-size // (FRAME_MAX - 8)))
    for number in range(3):
        method, _, body = content_of(frames)
        assert (method.delivery_tag, body) == (number + 1, bytes([number]) * size)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q", "other"]),
            st.booleans(),
            st.sampled_from([None, "id-1", "id-22"]),
            st.sampled_from([b"", b"x", b"y", b"hello", bytes(2000), bytes(FRAME_MAX)]),
        ),
        max_size=20,
    ),
    st.integers(1, 2**62),
)
def test_any_messages_follow_each_other_in_order(
    messages: list[tuple[str, bool, str | None, bytes]], first_tag: int
) -> None:
    """Each message arrives unchanged with the next tag, whatever fields they share."""
    pairs = [(head(key, redelivered=again, message_id=name), body) for key, again, name, body in messages]
    frames = frames_of(encoded(pairs, first_tag), 3)
    for tag, (key, again, name, body) in enumerate(messages, first_tag):
        method, header, received = content_of(frames)
        assert (method.delivery_tag, method.routing_key, method.redelivered) == (tag, key, again)
        assert (header.properties.message_id, received) == (name, body)
    assert frames == []


def test_layouts_are_forgotten_when_they_do_not_repeat() -> None:
    """Messages with unique ids do not fill the memory, and all arrive."""
    encoder = DeliverEncoder(3, "ctag", FRAME_MAX)
    out: list[bytes] = []
    encoder.encode(
        1, [(head(message_id=f"id-{number}"), b"x" * (number % 900)) for number in range(5000)], out
    )
    assert len(encoder._layouts) <= 1024
    assert len(encoder._packs) <= 1024
    frames = frames_of(b"".join(out), 3)
    for number in range(5000):
        method, header, body = content_of(frames)
        assert (method.delivery_tag, len(body)) == (number + 1, number % 900)
        assert header.properties.message_id == f"id-{number}"


def test_large_heads_are_not_kept() -> None:
    """A thousand large heads would take a hundred megabytes for each consumer."""
    encoder = DeliverEncoder(3, "ctag", FRAME_MAX)
    out: list[bytes] = []
    large = head(headers={"text": "x" * 2000})
    encoder.encode(1, [(large, b"1"), (large, b"2"), (head(), b"3")], out)
    assert len(encoder._layouts) == 1
    frames = frames_of(b"".join(out), 3)
    for number, headers in enumerate(({"text": "x" * 2000}, {"text": "x" * 2000}, None), 1):
        method, header, body = content_of(frames)
        assert (method.delivery_tag, body) == (number, b"%d" % number)
        assert header.properties.headers == headers


def test_heads_are_read_as_the_message_room_writes_them() -> None:
    for again in (False, True):
        message = head("key", redelivered=again, correlation_id="c")
        redelivered, names, properties = split(message)
        assert (names, properties, redelivered == b"\x01") == split_head(message)
        assert names == encode_shortstr("amq.direct") + encode_shortstr("key")


def flat(taken: list[Taken[str, Any]]) -> list[tuple[int, str, Any]]:
    return [
        (tag, part.consumer, key) for part in taken for tag, key in zip(part.tags, part.keys, strict=True)
    ]


def outstanding(*runs: tuple[int, str, int]) -> Unacked[str, int]:
    """Return first tag, consumer and count of each run; a key is ten times its tag."""
    unacked: Unacked[str, int] = Unacked()
    for first, consumer, count in runs:
        unacked.add(first, consumer, [tag * 10 for tag in range(first, first + count)])
    return unacked


def refused(unacked: Unacked[str, int], tag: int, *, multiple: bool = False) -> None:
    before = len(unacked)
    with pytest.raises(AmqpChannelError) as caught:
        unacked.ack(tag, multiple)
    assert caught.value.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {tag}"
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    assert len(unacked) == before


def test_a_row_of_acks_is_taken_at_once() -> None:
    """Each run of a consumer gives one part."""
    unacked = outstanding((1, "a", 4), (5, "b", 4))
    taken: list[Taken[str, int]] = []
    unacked.ack_run([(tag, False) for tag in range(1, 9)], taken)
    assert taken == [Taken("a", range(1, 5), [10, 20, 30, 40]), Taken("b", range(5, 9), [50, 60, 70, 80])]


def test_a_long_run_of_one_consumer_does_not_keep_what_is_taken() -> None:
    """The number of taken tags that are remembered is bounded, however long the run is."""
    unacked: Unacked[str, int] = Unacked()
    for tag in range(1, 10_001):
        unacked.add(tag, "a", [tag])
        if tag > 10:
            unacked.ack(tag - 10, False)
    assert len(unacked) == 10
    assert sum(len(run.keys) for run in unacked._runs) <= 512


def test_a_used_tag_cannot_be_added() -> None:
    unacked = outstanding((1, "a", 4))
    with pytest.raises(AssertionError):
        unacked.add(4, "a", [1])


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.just("ack"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("run"), st.integers(1, 40), st.integers(1, 8)),
    st.tuples(st.just("roll back"), st.integers(1, 40), st.booleans()),
)


@given(st.lists(STEPS, max_size=40))
def test_any_course_is_as_a_dict_says(steps: list[tuple[str, Any, Any]]) -> None:
    """Each ack takes the same tags in order as the naive model, or is refused as there."""
    unacked: Unacked[str, int] = Unacked()
    model: dict[int, str] = {}
    last = 0

    def of_model(tag: int, multiple: bool) -> list[tuple[int, str, int]] | None:
        if multiple and tag == 0:
            tags = sorted(model)
        elif tag not in model:
            return None
        else:
            tags = [one for one in sorted(model) if one <= tag] if multiple else [tag]
        return [(one, model.pop(one), one) for one in tags]

    for kind, first, second in steps:
        if kind == "add":
            unacked.add(last + 1, first, range(last + 1, last + 1 + second))
            model.update(dict.fromkeys(range(last + 1, last + 1 + second), first))
            last += second
        elif kind == "run":
            tags = [(tag, False) for tag in range(first, first + second)]
            taken: list[Taken[str, int]] = []
            expected: list[tuple[int, str, int]] = []
            for tag, _ in tags:
                one = of_model(tag, False)
                if one is None:
                    with pytest.raises(AmqpChannelError, match=f"unknown delivery tag {tag}$"):
                        unacked.ack_run(tags, taken)
                    break
                expected += one
            else:
                unacked.ack_run(tags, taken)
            assert flat(taken) == expected
        else:
            wanted = of_model(first, second)
            if wanted is None:
                with pytest.raises(AmqpChannelError):
                    unacked.ack(first, second)
            else:
                parts = unacked.ack(first, second)
                assert flat(parts) == wanted
                if kind == "roll back":
                    unacked.restore(parts)
                    model.update({tag: consumer for tag, consumer, _ in wanted})
        assert len(unacked) == len(model)
    assert flat(unacked.take_all()) == [(tag, model[tag], tag) for tag in sorted(model)]


def ack(tag: int, *, multiple: bool = False) -> Confirm:
    return Confirm(tag, multiple, False)


def nack(tag: int) -> Confirm:
    return Confirm(tag, False, True)


class Model:
    """The same in the simplest words: section 5.1 of the behaviour, per message."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.acks: set[int] = set()
        self.nacks: set[int] = set()
        self.last = 0

    def published(self, queues: int) -> None:
        self.last += 1
        if queues:
            self.waiting[self.last] = queues
        else:
            self.acks.add(self.last)

    def confirmed(self, seqs: list[int]) -> None:
        for seq in seqs:
            if seq in self.waiting:
                self.waiting[seq] -= 1
                if not self.waiting[seq]:
                    del self.waiting[seq]
                    self.acks.add(seq)

    def rejected(self, seqs: list[int]) -> None:
        for seq in seqs:
            if self.waiting.pop(seq, None):
                self.nacks.add(seq)

    def take(self) -> list[Confirm]:
        confirms = [nack(seq) for seq in sorted(self.nacks)]
        cutoff = min([*self.waiting, *self.nacks, self.last + 1])
        merged = sorted(seq for seq in self.acks if seq < cutoff)
        if merged:
            confirms.append(ack(merged[-1], multiple=len(merged) > 1))
        confirms += [ack(seq) for seq in sorted(self.acks) if seq >= cutoff]
        self.acks.clear()
        self.nacks.clear()
        return confirms


STEPS_CONFIRMS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.sampled_from(["confirm", "reject"]), st.lists(st.integers(0, 30), max_size=6), st.none()),
    st.tuples(st.just("confirm range"), st.integers(0, 30), st.integers(1, 10)),
    st.tuples(st.just("take"), st.none(), st.none()),
)


@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "reject")
@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "confirm")
@given(st.lists(STEPS_CONFIRMS, max_size=40))
def test_any_course_is_as_the_model_says(steps: list[tuple[str, object, object]]) -> None:
    """Each confirm, singly or in a row, leads to the same acks and nacks as the naive model."""
    confirms, model = ConfirmTracker(), Model()
    for step in [*steps, ("take", None, None)]:
        match step:
            case ("publish", int(queues), int(count)):
                confirms.published(confirms.next_seq, queues, count)
                for _ in range(count):
                    model.published(queues)
            case (("confirm" | "reject") as kind, list(seqs), _):
                known = [max(1, seq % (model.last + 1)) for seq in seqs] if model.last else []
                if kind == "confirm":
                    confirms.confirmed(known)
                    model.confirmed(known)
                else:
                    confirms.rejected(known)
                    model.rejected(known)
            case ("confirm range", int(first), int(count)):
                row = range(max(first, 1), min(first + count, model.last + 1))
                confirms.confirmed(row)
                model.confirmed(list(row))
            case _:
                assert confirms.take() == model.take()
        assert confirms.waiting == len(model.waiting)
        assert confirms.next_seq == model.last + 1
