"""Lines of a trace to the client of the admin socket that requested them, until one side ends it."""

from __future__ import annotations

import json
from typing import Any, Final

import trio

from amqp10broker.errors import NotFound
from amqp10broker.operations.caller import Lines
from amqp10broker.runtime.observe.trace_sinks import StreamSink

READER_GONE: Final = "who asked for it has gone"


async def send_lines(stream: trio.abc.Stream, lines: Lines) -> None:
    """Answer, and then send lines until the trace ends or its reader has gone. Raises `RefusedError` if it
    does not begin; nothing was sent.
    """
    sink = StreamSink()
    begun = lines.begin(sink)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_reader, stream, nursery.cancel_scope)
            await _send(stream, sink, {"ok": True, "result": begun})
            nursery.cancel_scope.cancel()
    finally:
        if sink.ended is None:
            try:
                lines.end(READER_GONE)
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
