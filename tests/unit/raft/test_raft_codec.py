"""Messages and records come back as they were; any other bytes are refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.raft.codec import (
    decode_config,
    decode_hard,
    decode_message,
    decode_point,
    encode_config,
    encode_hard,
    encode_message,
    encode_point,
)
from amqp10broker.raft.config import Configuration
from amqp10broker.raft.entries import Hard, Kind, Point, Run, Snapshot, run_of
from amqp10broker.raft.errors import BadBytes
from amqp10broker.raft.messages import (
    Append,
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteAnswer,
    TimeoutNow,
    Vote,
    VoteAnswer,
)

NUMBERS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 2**40)
HEADS = (NUMBERS, NUMBERS, NUMBERS)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Voters and learners."""
    members = draw(st.lists(st.integers(1, 2**64 - 1), unique=True, max_size=8))
    cut = draw(st.integers(0, len(members)))
    return Configuration(tuple(sorted(members[:cut])), tuple(sorted(members[cut:])))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    """Runs that follow each other, as a leader has them."""
    prev_index, prev_term = draw(SMALL), draw(SMALL)
    first, term = prev_index + 1, prev_term
    runs: list[Run] = []
    for _ in range(draw(st.integers(0, 3))):
        term += draw(st.integers(0, 2))
        kind = draw(st.sampled_from(Kind))
        payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
        if kind is Kind.CONFIG:
            payloads = [encode_config(draw(configurations())) for _ in payloads]
        runs.append(run_of(first, term, kind, tuple(payloads)))
        first = runs[-1].last + 1
    newest = draw(st.integers(term, 2**64 - 1))
    return Append(draw(NUMBERS), draw(NUMBERS), newest, prev_index, prev_term, draw(NUMBERS), tuple(runs))


POINTS = st.builds(Point, NUMBERS, NUMBERS, configurations())
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    appends(),
    st.builds(AppendAnswer, *HEADS, NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS),
    st.builds(Heartbeat, *HEADS, NUMBERS),
    st.builds(HeartbeatAnswer, *HEADS, NUMBERS),
    st.builds(PreVote, *HEADS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteAnswer, *HEADS, NUMBERS, st.booleans()),
    st.builds(Vote, *HEADS, NUMBERS, NUMBERS),
    st.builds(VoteAnswer, *HEADS, st.booleans()),
    st.builds(TimeoutNow, *HEADS),
    st.builds(InstallSnapshot, *HEADS, st.builds(Snapshot, POINTS, st.binary(max_size=40))),
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Of every kind, with any numbers."""
    assert decode_message(encode_message(message)) == message


@given(st.builds(Hard, NUMBERS, st.none() | st.integers(1, 2**64 - 1), NUMBERS), configurations(), POINTS)
def test_a_record_comes_back_as_it_was(hard: Hard, config: Configuration, point: Point) -> None:
    """Term and vote, configurations, points."""
    assert decode_hard(encode_hard(hard)) == hard
    assert decode_config(encode_config(config)) == config
    assert decode_point(encode_point(point)) == point


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No other exception, whatever they are."""
    for decode in (decode_message, decode_hard, decode_config, decode_point):
        try:
            decode(data)
        except BadBytes:
            continue


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ((run_of(5, 3, Kind.COMMAND, (b"x",)),), "an entry of term 3 behind one of 4"),
        ((run_of(5, 9, Kind.COMMAND, (b"x",)),), "from a leader of 6"),
        ((run_of(5, 6, Kind.CONFIG, (b"x",)),), "bytes are missing"),
        ((Run(5, 6, Kind.COMMAND, (), 0),), "a run without entries"),
    ],
)
def test_entries_that_no_leader_has_are_refused(runs: tuple[Run, ...], what: str) -> None:
    """Terms never fall in a log, and a configuration can be read: a member need not look again."""
    with pytest.raises(BadBytes, match=what):
        decode_message(encode_message(Append(1, 2, 6, 4, 4, 0, runs)))


def test_a_configuration_in_another_order_is_refused() -> None:
    """Equal configurations are equal bytes."""
    with pytest.raises(BadBytes, match="ascending"):
        decode_config(encode_config(Configuration((2, 1))))
    with pytest.raises(BadBytes, match="stand twice"):
        decode_config(encode_config(Configuration((1,), (1,))))
