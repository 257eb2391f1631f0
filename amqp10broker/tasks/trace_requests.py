"""What the admin socket is asked about traces: into a file, off, or as a stream of lines to who asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import trio

from amqp10broker.errors import NotFound
from amqp10broker.tasks.trace_sinks import FileSink, StreamSink
from amqp10broker.tasks.tracing import Tracing

OPERATION: Final = "trace"
READER_GONE: Final = "who asked for it has gone"


def is_stream(request: Mapping[str, Any]) -> bool:
    """Whether lines are to follow the answer."""
    return request.get("op") == OPERATION and request.get("on") is True and request.get("file") is None


def trace(tracing: Tracing, request: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a trace into a file, or end one of any kind.

    Raises:
        ValueError: the request is not of this form.
        NotFound: there is nothing to trace, or no such trace.
        NotAllowed: it is being traced already.
        StorageError: the file cannot be opened.
    """
    what, on, file = request.get("what"), request.get("on"), request.get("file")
    if not isinstance(what, str) or not isinstance(on, bool) or not isinstance(file, str | None):
        raise ValueError("'what' must be a text, 'on' true or false, and 'file' a file's name or null")
    if not on:
        ended = tracing.end(what)
        return {"target": ended.target.text, "into": ended.place, "lines": ended.lines}
    assert file is not None, "a stream has its own way"
    sink = FileSink(file)
    try:
        begun = tracing.begin(what, sink, file)
    except BaseException:
        sink.close("it did not begin")
        raise
    return {"target": begun.target.text, "into": begun.place}


async def stream_trace(tracing: Tracing, stream: trio.abc.Stream, request: Mapping[str, Any]) -> None:
    """Answer, and then send lines until the trace ends or its reader has gone.

    Raises:
        ValueError, NotFound, NotAllowed: as `trace`; nothing was sent.
    """
    what = request.get("what")
    if not isinstance(what, str):
        raise ValueError("'what' must be a text")
    sink = StreamSink()
    begun = tracing.begin(what, sink, "a terminal")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_reader, stream, nursery.cancel_scope)
            await _send(stream, sink, {"ok": True, "result": {"target": begun.target.text}})
            nursery.cancel_scope.cancel()
    finally:
        if sink.ended is None:
            try:
                tracing.end(what, READER_GONE)
            except NotFound:  # switched off in the same moment
                sink.close(READER_GONE)


async def _send(stream: trio.abc.Stream, sink: StreamSink, answer: dict[str, Any]) -> None:
    try:
        await stream.send_all(_line(answer))
        ended = None
        while ended is None:
            lines, left_out = await sink.take()
            ended = sink.ended
            await stream.send_all(_line({"lines": lines, "left_out": left_out, "ended": ended}))
    except trio.BrokenResourceError:
        return  # the reader is lost, which ends the trace


async def _end_with_reader(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    try:
        while await stream.receive_some(1024):
            pass  # it has nothing more to say
    except trio.BrokenResourceError:
        pass  # as gone as one that closed
    scope.cancel()


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
