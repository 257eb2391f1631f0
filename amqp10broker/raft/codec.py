"""Bytes of messages, and of what a journal keeps of a group.

A message is::

    version u8 | kind u8 | sender u64 | to u64 | term u64 | the kind's own fields

Integers are little-endian. Which group it is about stands in the frame around it. The entries of an append::

    runs u32, of each: term u64 | kind u8 | count u32 | size u32 each | payloads

Indexes of entries are not written: they follow `prev_index`. Records (`encode_hard`, `encode_config`,
`encode_point`) begin with their version as well. A version that is not known is refused: what speaks to whom
is agreed before, and a folder's format is looked at before it is read.

Bytes that cannot be read raise `BadBytes` and nothing else, whatever they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Final, assert_never

from amqp10broker.raft.config import Configuration
from amqp10broker.raft.entries import Hard, Kind, Point, Run, Snapshot
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

VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBQQQ")
_APPEND: Final = struct.Struct("<QQQI")
_RUN: Final = struct.Struct("<QBI")
_ANSWER: Final = struct.Struct("<QQBQQ")
_ROUND: Final = struct.Struct("<Q")
_PRE_VOTE: Final = struct.Struct("<QQQ")
_PRE_VOTE_ANSWER: Final = struct.Struct("<QB")
_VOTE: Final = struct.Struct("<QQ")
_FLAG: Final = struct.Struct("<B")
_COUNTS: Final = struct.Struct("<BHH")
_POINT: Final = struct.Struct("<BQQ")
_HARD: Final = struct.Struct("<BQQQ")

_APPEND_KIND: Final = 1
_APPEND_ANSWER_KIND: Final = 2
_HEARTBEAT_KIND: Final = 3
_HEARTBEAT_ANSWER_KIND: Final = 4
_PRE_VOTE_KIND: Final = 5
_PRE_VOTE_ANSWER_KIND: Final = 6
_VOTE_KIND: Final = 7
_VOTE_ANSWER_KIND: Final = 8
_TIMEOUT_NOW_KIND: Final = 9
_SNAPSHOT_KIND: Final = 10


# -- messages


def encode_message(message: Message) -> bytes:
    """A message as bytes.

    Raises:
        struct.error: a number is negative, or above 64 bits: a fault of ours.
    """
    kind, rest = _encode_rest(message)
    return _HEAD.pack(VERSION, kind, message.sender, message.to, message.term) + rest


def decode_message(data: bytes) -> Message:
    """Read a message. Raises `BadBytes` if it is not valid."""
    reader = _Reader(data)
    version, kind, sender, to, term = reader.take(_HEAD)
    _check_version(version)
    decode = _DECODERS.get(kind)
    if decode is None:
        raise BadBytes(f"{kind} is no kind of message")
    message = decode(reader, sender, to, term)
    reader.end()
    return message


def _encode_rest(message: Message) -> tuple[int, bytes]:
    match message:
        case Append():
            return _APPEND_KIND, _encode_append(message)
        case AppendAnswer(match=match, commit=commit, rejected=rejected, match_term=match_term):
            return _APPEND_ANSWER_KIND, _ANSWER.pack(
                match, commit, rejected is not None, rejected or 0, match_term
            )
        case Heartbeat():
            return _HEARTBEAT_KIND, _ROUND.pack(message.round)
        case HeartbeatAnswer():
            return _HEARTBEAT_ANSWER_KIND, _ROUND.pack(message.round)
        case PreVote():
            fields = (message.last_index, message.last_term, message.token)
            return _PRE_VOTE_KIND, _PRE_VOTE.pack(*fields)
        case PreVoteAnswer():
            return _PRE_VOTE_ANSWER_KIND, _PRE_VOTE_ANSWER.pack(message.token, message.granted)
        case Vote():
            return _VOTE_KIND, _VOTE.pack(message.last_index, message.last_term)
        case VoteAnswer():
            return _VOTE_ANSWER_KIND, _FLAG.pack(message.granted)
        case TimeoutNow():
            return _TIMEOUT_NOW_KIND, b""
        case InstallSnapshot():
            point = encode_point(message.snapshot.point)
            return _SNAPSHOT_KIND, len(point).to_bytes(4, "little") + point + message.snapshot.data
        case _:
            assert_never(message)


def _encode_append(append: Append) -> bytes:
    pieces = [_APPEND.pack(append.prev_index, append.prev_term, append.commit, len(append.runs))]
    for run in append.runs:
        count = len(run.payloads)
        pieces.append(_RUN.pack(run.term, run.kind, count))
        pieces.append(struct.pack(f"<{count}I", *map(len, run.payloads)))
        pieces.extend(run.payloads)
    return b"".join(pieces)


def _decode_append(reader: _Reader, sender: int, to: int, term: int) -> Append:
    prev_index, prev_term, commit, count = reader.take(_APPEND)
    runs: list[Run] = []
    index, newest = prev_index, prev_term
    for _ in range(count):
        run = _decode_run(reader, index + 1)
        if not newest <= run.term <= term:
            raise BadBytes(f"an entry of term {run.term} behind one of {newest}, from a leader of {term}")
        runs.append(run)
        index, newest = run.last, run.term
    return Append(sender, to, term, prev_index, prev_term, commit, tuple(runs))


def _decode_run(reader: _Reader, first: int) -> Run:
    term, kind, count = reader.take(_RUN)
    if not count:
        raise BadBytes("a run without entries")
    if kind not in _KINDS:
        raise BadBytes(f"{kind} is no kind of entry")
    sizes = struct.unpack(f"<{count}I", reader.piece(4 * count))
    size = sum(sizes)
    content = reader.piece(size)
    payloads = tuple(
        [content[end - length : end] for length, end in zip(sizes, accumulate(sizes), strict=True)]
    )
    if kind == Kind.CONFIG:
        for payload in payloads:
            decode_config(payload)
    return Run(first, term, Kind(kind), payloads, size)


def _decode_append_answer(reader: _Reader, sender: int, to: int, term: int) -> AppendAnswer:
    match, commit, is_rejected, rejected, match_term = reader.take(_ANSWER)
    return AppendAnswer(sender, to, term, match, commit, rejected if is_rejected else None, match_term)


def _decode_heartbeat(reader: _Reader, sender: int, to: int, term: int) -> Heartbeat:
    return Heartbeat(sender, to, term, *reader.take(_ROUND))


def _decode_heartbeat_answer(reader: _Reader, sender: int, to: int, term: int) -> HeartbeatAnswer:
    return HeartbeatAnswer(sender, to, term, *reader.take(_ROUND))


def _decode_pre_vote(reader: _Reader, sender: int, to: int, term: int) -> PreVote:
    return PreVote(sender, to, term, *reader.take(_PRE_VOTE))


def _decode_pre_vote_answer(reader: _Reader, sender: int, to: int, term: int) -> PreVoteAnswer:
    token, granted = reader.take(_PRE_VOTE_ANSWER)
    return PreVoteAnswer(sender, to, term, token, bool(granted))


def _decode_vote(reader: _Reader, sender: int, to: int, term: int) -> Vote:
    return Vote(sender, to, term, *reader.take(_VOTE))


def _decode_vote_answer(reader: _Reader, sender: int, to: int, term: int) -> VoteAnswer:
    return VoteAnswer(sender, to, term, bool(reader.take(_FLAG)[0]))


def _decode_timeout_now(reader: _Reader, sender: int, to: int, term: int) -> TimeoutNow:
    return TimeoutNow(sender, to, term)


def _decode_snapshot(reader: _Reader, sender: int, to: int, term: int) -> InstallSnapshot:
    point = decode_point(reader.piece(int.from_bytes(reader.piece(4), "little")))
    return InstallSnapshot(sender, to, term, Snapshot(point, reader.rest()))


class _Reader:
    """Takes bytes from the front, and never beyond the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.piece(layout.size))

    def piece(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise BadBytes(f"{size} bytes are missing of {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def rest(self) -> bytes:
        return self.piece(len(self._data) - self._at)

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadBytes(f"{len(self._data) - self._at} bytes behind the end")


_KINDS: Final = frozenset(Kind)
_DECODERS: Final[Mapping[int, Callable[[_Reader, int, int, int], Message]]] = {
    _APPEND_KIND: _decode_append,
    _APPEND_ANSWER_KIND: _decode_append_answer,
    _HEARTBEAT_KIND: _decode_heartbeat,
    _HEARTBEAT_ANSWER_KIND: _decode_heartbeat_answer,
    _PRE_VOTE_KIND: _decode_pre_vote,
    _PRE_VOTE_ANSWER_KIND: _decode_pre_vote_answer,
    _VOTE_KIND: _decode_vote,
    _VOTE_ANSWER_KIND: _decode_vote_answer,
    _TIMEOUT_NOW_KIND: _decode_timeout_now,
    _SNAPSHOT_KIND: _decode_snapshot,
}


# -- records


def encode_hard(hard: Hard) -> bytes:
    """Term, vote and commit: 25 bytes. No vote is 0, which is no member's id."""
    return _HARD.pack(VERSION, hard.term, hard.vote or 0, hard.commit)


def decode_hard(data: bytes) -> Hard:
    """Read what `encode_hard` wrote. Raises `BadBytes` if it is something else."""
    reader = _Reader(data)
    version, term, vote, commit = reader.take(_HARD)
    _check_version(version)
    reader.end()
    return Hard(term, vote or None, commit)


def encode_config(config: Configuration) -> bytes:
    """A configuration, in an entry of kind CONFIG or a record: 5 bytes and 8 a member."""
    members = config.members
    head = _COUNTS.pack(VERSION, len(config.voters), len(config.learners))
    return head + struct.pack(f"<{len(members)}Q", *members)


def decode_config(data: bytes) -> Configuration:
    """Decode the output of `encode_config`. Raises `BadBytes` if the bytes are malformed, or the
    configuration is impossible.
    """
    reader = _Reader(data)
    version, voters, learners = reader.take(_COUNTS)
    _check_version(version)
    members = struct.unpack(f"<{voters + learners}Q", reader.piece(8 * (voters + learners)))
    reader.end()
    config = Configuration(members[:voters], members[voters:])
    ascending = all(side == tuple(sorted(side)) for side in (config.voters, config.learners))
    if not ascending or len(set(members)) < len(members) or 0 in members:
        raise BadBytes("members of a configuration that are not ascending, or stand twice")
    return config


def encode_point(point: Point) -> bytes:
    """A place in the log, with the configuration there: 17 bytes and `encode_config`'s."""
    return _POINT.pack(VERSION, point.index, point.term) + encode_config(point.config)


def decode_point(data: bytes) -> Point:
    """Read what `encode_point` wrote. Raises `BadBytes` if it is something else."""
    reader = _Reader(data)
    version, index, term = reader.take(_POINT)
    _check_version(version)
    return Point(index, term, decode_config(reader.rest()))


def _check_version(version: int) -> None:
    if version != VERSION:
        raise BadBytes(f"version {version}; this program knows {VERSION}")
