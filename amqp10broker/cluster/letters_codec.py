"""Commands of a node's sessions to a queue, as the body of a frame.

::

    LETTER   token u32 | first u64 | heard u64 | command*      command: tag u8 | length u32 | content
    BROWSE   token u32 | command*
    RESUME   token u32 | incarnation u32 | heard u64 | first u64 | (session u64 | handle u64 | seen u64)*

Integers are little-endian. Commands are encoded as in the log of a quorum queue
(`queues.quorum.command_codec`); those that no log has use tags of their own: `Inspect`, `Touch`, and a
`Subscribe` with its wishes. A publish's messages are one batch, and their bodies are copied once on either
side.

The decoders raise `BadLetter` and nothing else for invalid bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from amqp10broker.cluster.remote_queue.messages import Browse, LetterBatch, ResumeRemote
from amqp10broker.message.batch import BATCH_MAX
from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.filters import Filters
from amqp10broker.message.filters.wanted import decode_wanted, encode_wanted
from amqp10broker.queues.commands import (
    TOUCH,
    AttachPublisher,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    Purge,
    RequestRef,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.quorum.browsing import OF_CONSUMERS
from amqp10broker.queues.quorum.command_codec import decode_framed, framed, read_framed

_LETTERS: Final = struct.Struct("<IQQ")
_BROWSE: Final = struct.Struct("<I")
_RESUME: Final = struct.Struct("<IIQQ")
_SEEN: Final = struct.Struct("<QQQ")
_START: Final = struct.Struct("<BI")
_REQUEST: Final = struct.Struct("<IIQQ")
_STREAM: Final = struct.Struct("<BI")
SHOWN: Final = struct.Struct("<4Q")
"""How far a browser was shown (`Deliver.shown`)."""

_INSPECT_TAG: Final = 0x81
_TOUCH_TAG: Final = 0x82
_STREAM_TAG: Final = 0x83

_FROM_SESSIONS: Final = (
    Publish,
    Credit,
    Settle,
    GiveBack,
    Subscribe,
    Cancel,
    Unsubscribe,
    AttachPublisher,
    DetachPublisher,
    Purge,
    Delete,
)


class BadLetter(ValueError):
    """The bytes are no letter, no effects and no other body of a link."""


def encode_letters(batch: LetterBatch) -> list[bytes]:
    """Letters as pieces that belong together in this order."""
    return [_LETTERS.pack(batch.token, batch.first, batch.heard), *_pieces(batch.commands)]


def _pieces(commands: Sequence[Command]) -> list[bytes]:
    pieces: list[bytes] = []
    for command in commands:
        match command:
            case Inspect():
                pieces.append(_START.pack(_INSPECT_TAG, _REQUEST.size) + _ref(command.request))
            case Touch():
                pieces.append(_START.pack(_TOUCH_TAG, 0))
            case Subscribe() if command.filters is not None or command.enqueued_time or command.browse:
                pieces += _subscribe_stream(command)
            case _:
                assert isinstance(command, _FROM_SESSIONS), f"no session sends {command!r}"
                pieces += framed(command)
    return pieces


def decode_letters(body: bytes) -> LetterBatch:
    """Decode the output of `encode_letters`. Raises `BadLetter` if the body is invalid."""
    try:
        token, first, heard = _LETTERS.unpack_from(body)
        commands = list(_commands(body, _LETTERS.size))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise BadLetter(f"no letters to a queue: {error}") from error
    if not commands or not first:
        raise BadLetter("letters to a queue: there is none, or they are numbered from 0")
    return LetterBatch(token, first, heard, commands)


def encode_browse(browse: Browse) -> list[bytes]:
    """Encode requests of browsers, as pieces to be joined in this order."""
    return [_BROWSE.pack(browse.token), *_pieces(browse.commands)]


def decode_browse(body: bytes) -> Browse:
    """Decode the output of `encode_browse`. Raises `BadLetter` if the body is invalid."""
    try:
        (token,) = _BROWSE.unpack_from(body)
        commands = list(_commands(body, _BROWSE.size))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise BadLetter(f"no questions of browsers to a queue: {error}") from error
    if not commands or not all(map(is_browsers, commands)):
        raise BadLetter("questions of browsers to a queue: there is none, or no browser asks one of them")
    return Browse(token, commands)


def is_browsers(command: Command) -> bool:
    """Whether a browser of a quorum queue may send this command."""
    return command.browse if isinstance(command, Subscribe) else isinstance(command, OF_CONSUMERS)


def cut(command: Publish) -> list[Publish]:
    """A publish as several, none with more messages than a batch may have."""
    if len(command.messages) <= BATCH_MAX:
        return [command]
    return [
        Publish(
            command.publisher,
            command.ids[start : start + BATCH_MAX],
            command.messages[start : start + BATCH_MAX],
            command.settled,
        )
        for start in range(0, len(command.messages), BATCH_MAX)
    ]


def encode_resume(resume: ResumeRemote) -> list[bytes]:
    """Encode a node's position, in pieces; all consumers belong to that start of that node."""
    seen = resume.seen
    return [
        _RESUME.pack(resume.token, resume.incarnation, resume.heard, resume.first),
        *(_SEEN.pack(ref.reply_to.session, ref.handle, count) for ref, count in seen.items()),
    ]


def decode_resume(body: bytes, node: int) -> ResumeRemote:
    """Decode the output of `encode_resume`. Raises `BadLetter` if the body is invalid."""
    try:
        token, incarnation, heard, first = _RESUME.unpack_from(body)
        seen = {
            ConsumerRef(PeerId(node, incarnation, session), handle): count
            for session, handle, count in _SEEN.iter_unpack(body[_RESUME.size :])
        }
    except struct.error as error:
        raise BadLetter(f"no report of what a node has heard: {error}") from error
    if not first:
        raise BadLetter("a report of what a node has heard: letters are numbered from 1")
    return ResumeRemote(token, incarnation, heard, first, seen)


def _commands(body: bytes, at: int) -> Iterator[Command]:
    for tag, start, end in read_framed(body, at):
        if tag == _INSPECT_TAG:
            *peer, handle = _REQUEST.unpack(body[start:end])
            yield Inspect(RequestRef(PeerId(*peer), handle))
        elif tag == _TOUCH_TAG:
            yield TOUCH
        elif tag == _STREAM_TAG:
            yield _read_subscribe_stream(body, start, end)
        else:
            command = decode_framed(tag, body, start, end)
            if not isinstance(command, _FROM_SESSIONS):
                raise ValueError(f"no session says {type(command).__name__}")
            yield command


def _ref(request: RequestRef) -> bytes:
    return _REQUEST.pack(*request.reply_to, request.handle)


def _subscribe_stream(command: Subscribe) -> Sequence[bytes]:
    filters = command.filters
    assert filters is None or isinstance(filters, Filters)
    wanted = b"" if filters is None else encode_wanted(filters)
    plain = framed(replace(command, position=None, filters=None, enqueued_time=False, browse=False, shown=()))
    shown = SHOWN.pack(*command.shown) if command.shown else b""
    length = _STREAM.size + len(shown) + len(wanted) + sum(map(len, plain))
    flags = command.enqueued_time | (filters is not None) << 1 | command.browse << 2 | bool(shown) << 3
    start = _START.pack(_STREAM_TAG, length) + _STREAM.pack(flags, len(wanted))
    return [start, shown, wanted, *plain]


def _read_subscribe_stream(body: bytes, start: int, end: int) -> Subscribe:
    flags, length = _STREAM.unpack_from(body, start)
    start += _STREAM.size
    shown: Sequence[int] = ()
    if flags & 8:
        shown = SHOWN.unpack_from(body, start)
        start += SHOWN.size
    inner = body[start + length : end]
    ((tag, at, stop),) = read_framed(inner, 0)
    plain = decode_framed(tag, inner, at, stop)
    if not isinstance(plain, Subscribe) or start + length > end:
        raise ValueError("a subscription to a stream is none")
    filters = None
    if flags & 2:
        try:
            filters = decode_wanted(body[start : start + length])
        except FilterError as error:
            raise ValueError(f"what a consumer wants of a stream cannot be read: {error}") from error
    position = None if filters is None else filters.offset
    return replace(
        plain,
        enqueued_time=bool(flags & 1),
        browse=bool(flags & 4),
        shown=shown,
        filters=filters,
        position=position,
    )
