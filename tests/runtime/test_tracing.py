"""Tracing while the broker runs: whose frames are shown, into what, how it ends, and what stays then."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, Flow
from amqp10broker.runtime.admin import admin
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import trace_sinks
from tests.runtime.conftest import LogRecorder
from tests.support.admin_requests import ask, asked
from tests.support.rawframes import attach_receiver, attach_sender, begin, flow, frame, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import connect091, message


class Lines:
    """A sink that a test can look into."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self.lines: list[str] = []

    def write(self, number: int, peer: str, lines: Any) -> None:
        self.lines += lines

    def put(self, lines: Any) -> None:
        self.lines += lines

    def close(self, reason: str) -> None:
        self.ended = reason

    def names(self) -> list[str]:
        return [" ".join(line.split()[:4:3] if " ch " in line else line.split()[:2]) for line in self.lines]


def begun(broker: Broker, what: str) -> Lines:
    sink = Lines()
    broker.tracing.begin(what, sink, "a test")
    return sink


async def serve(broker: Broker, stream: trio.abc.Stream) -> None:
    async with stream:
        await admin.serve_lines(broker, stream)


def grant(handle: int) -> bytes:
    return flow(1, handle=handle, delivery_count=0, link_credit=1)


def number_of(client: Client) -> str:
    return str(client.task.number)


# --- whose frames ---------------------------------------------------------------------------------


async def test_everything_can_be_asked_for_while_the_broker_runs(broker: Broker, tmp_path: Path) -> None:
    """Present connections are shown from then on, and new ones from their first byte."""
    there = await connect(broker).open()
    trace = begun(broker, "everything")
    await there.send(frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9)))
    await there.idle()
    assert trace.names()[0] == "<- FLOW"
    trace.lines.clear()
    await connect(broker).open()
    assert trace.names()[0] == "<- AMQP"
    refused = await asked(broker, "trace", what="everything", on=True, file=str(tmp_path / "lines"))
    assert "being traced already" in refused["error"]
    await ask(broker, "trace", what="everything", on=False)
    assert trace.ended == "it was switched off"


async def test_a_trace_that_begins_in_the_middle_of_a_frame_shows_that_frame_whole(broker: Broker) -> None:
    """AMQP 1.0: the reader holds its beginning, and nothing before it is shown."""
    client = await connect(broker).open()
    attach = attach_sender(0, "/queues/q")
    await ask(broker, "declare-queue", name="q")
    await client.submit(attach[:20])
    shown = begun(broker, number_of(client))
    await client.call(Attach, attach[20:])
    await client.until(Flow)
    assert shown.names() == ["<- ATTACH", "-> ATTACH", "-> FLOW"]
    assert "address=/queues/q" in shown.lines[0]


async def test_a_trace_of_amqp_091_begins_in_the_middle_of_a_content_too(broker: Broker) -> None:
    """Half of the body's frame has arrived; the method before it is not shown."""
    client = await connect091(broker).open()
    await client.call(1, methods.QueueDeclare(queue="q"), methods.QueueDeclareOk)
    publish = message(1, "q", b"0123456789")
    await client.send_bytes(publish[:-5])
    await settle_down()
    shown = begun(broker, str(client.task.number))
    await client.send_bytes(publish[-5:])
    await client.call(1, methods.QueuePurge(queue="q"), methods.QueuePurgeOk)
    assert shown.names() == ["<- body(10", "<- queue.purge", "-> queue.purge-ok"]


async def test_a_user_is_traced_on_all_connections_also_on_those_to_come(broker: Broker) -> None:
    """It begins at the login; other users are not shown."""
    await ask(broker, "add-user", user="ann", password="secret")
    await ask(broker, "set-permissions", user="ann", configure=".*", write=".*", read=".*")
    shown = begun(broker, "ann")
    other = await connect091(broker).open()
    await other.call(1, methods.QueueDeclare(queue="q"), methods.QueueDeclareOk)
    assert shown.lines == []
    anns = connect091(broker)
    await anns.open(user="ann", password="secret")
    assert shown.names()[:3] == ["-> connection.tune", "<- connection.tune-ok", "<- connection.open"]
    assert "secret" not in "".join(shown.lines)
    later = begun(broker, "guest")
    await other.call(1, methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    assert later.names() == ["<- queue.delete", "-> queue.delete-ok"]


async def test_an_address_is_traced_on_links_that_are_there_and_links_that_come(broker: Broker) -> None:
    """Frames of the session's other links are left out; a bare name is the queue's address too."""
    for name in ("one", "two"):
        await ask(broker, "declare-queue", name=name)
    client = await connect(broker).open(channels=2)
    await client.send(attach_sender(4, "/queues/one"), attach_sender(5, "/queues/two"))
    await client.idle()
    shown = begun(broker, "/queues/one")
    await client.send(*[transfer(handle, number, b"m") for number, handle in enumerate((4, 5, 5, 4))])
    await client.send(attach_receiver(6, "one", channel=1), attach_receiver(7, "two", channel=1))
    await client.idle()
    await client.send(grant(6), grant(7))
    await client.idle()
    await client.send(frame(1, Detach(handle=7, closed=True)), frame(1, Detach(handle=6, closed=True)))
    await client.until(Detach)
    await client.until(Detach)
    assert [each for each in shown.names() if each != "-> DISPOSITION"] == [
        "<- TRANSFER",
        "<- TRANSFER",
        "<- ATTACH",
        "-> ATTACH",
        "<- FLOW",
        "-> TRANSFER",
        "<- DETACH",
        "-> DETACH",
    ]
    assert all("two" not in line for line in shown.lines)


async def test_a_handle_that_is_used_again_for_another_address_is_not_shown(broker: Broker) -> None:
    """This also holds when the session has ended and its channel has a new one."""
    for name in ("one", "two"):
        await ask(broker, "declare-queue", name=name)
    client = await connect(broker).open()
    shown = begun(broker, "/queues/o*")
    await client.send(attach_sender(0, "/queues/one"))
    await client.idle()
    assert shown.names() == ["<- ATTACH", "-> ATTACH", "-> FLOW"]
    await client.call(Detach, frame(0, Detach(handle=0, closed=True)))
    shown.lines.clear()
    await client.send(attach_sender(0, "/queues/two"), transfer(0, 0, b"m"))
    await client.idle()
    assert shown.lines == []
    await client.call(Begin, begin(1), attach_sender(0, "/queues/two", channel=1))
    await client.idle()
    assert shown.lines == []


async def test_a_channel_is_shown_from_the_method_on_that_names_the_queue(broker: Broker) -> None:
    """AMQP 0-9-1: publishes to other queues are left out, with header and body; so are other channels."""
    client = await connect091(broker).open(channels=2)
    for channel, name in ((1, "one"), (2, "two")):
        await client.call(channel, methods.QueueDeclare(queue=name), methods.QueueDeclareOk)
    shown = begun(broker, "/queues/one")
    for name in ("two", "one", "two"):
        await client.publish("", name, b"m")
    await client.call(2, methods.QueuePurge(queue="two"), methods.QueuePurgeOk)
    await client.call(1, methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk)
    assert shown.names() == [
        "<- basic.publish",
        "<- header",
        "<- body(1",
        "<- channel.close",
        "-> channel.close-ok",
    ]


async def test_a_consumer_that_is_there_already_is_traced_by_its_queue(broker: Broker) -> None:
    """AMQP 0-9-1: its deliveries name no queue."""
    client = await connect091(broker).open()
    await client.call(1, methods.QueueDeclare(queue="one"), methods.QueueDeclareOk)
    await client.call(1, methods.BasicConsume(queue="one", consumer_tag="t"), methods.BasicConsumeOk)
    shown = begun(broker, "/queues/one")
    other = await connect091(broker).open()
    await other.publish("", "one", b"m")
    await client.idle()
    assert shown.names() == [
        "<- basic.publish",
        "<- header",
        "<- body(1",
        "-> basic.deliver",
        "-> header",
        "-> body(1",
    ]


async def test_everything_is_traced_from_the_protocol_header_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--trace-frames`` uses the same mechanism; a header of an unsupported protocol is shown too."""
    log = LogRecorder()
    monkeypatch.setattr("amqp10broker.runtime.observe.trace_sinks._log", log)
    async with running_broker(trace_frames=True) as broker:
        await connect(broker).open()
        lines = [line for line, _ in log.of("info")]
        assert lines[0] == "<- AMQP 3 1 0 0"
        assert "<- ch 0 SASL-INIT mechanism=ANONYMOUS initial-response=(hidden)" in lines
        assert "-> AMQP 0 1 0 0" in lines
        log.entries.clear()
        await connect091(broker).open()
        lines = [line for line, _ in log.of("info")]
        assert lines[0] == "<- AMQP 0 0 9 1"
        assert lines[1].startswith("-> ch 0 connection.start ")
        log.entries.clear()
        ours, theirs = memory_stream_pair()
        broker.serve(theirs, peer="odd")
        await ours.send_all(b"AMQP\x01\x01\x09\x09")
        await ours.receive_some(100)
        assert [line for line, _ in log.of("info")] == [
            "<- no protocol header: 41 4d 51 50 01 01 09 09",
            "-> AMQP 3 1 0 0",
        ]


# --- how it ends ----------------------------------------------------------------------------------


async def test_nothing_listens_any_more_when_the_last_trace_has_ended(broker: Broker) -> None:
    """Two traces of one connection share one tap; an untraced connection has none."""
    client = await connect(broker).open()
    line = client.task
    assert line.writer.tap is None
    by_number, by_user = begun(broker, number_of(client)), begun(broker, "guest")
    tap = line.writer.tap
    broker.tracing.end(number_of(client))
    assert line.writer.tap is tap
    await client.call(Begin, begin(1))
    assert by_number.lines == []
    assert by_user.names() == ["<- BEGIN", "-> BEGIN"]
    broker.tracing.end("guest")
    assert line.writer.tap is None
    assert broker.status()["broker"]["traces"] == []


async def test_the_trace_of_a_connection_ends_with_it_and_says_how(broker: Broker) -> None:
    client = await connect(broker).open()
    shown = begun(broker, number_of(client))
    await client.lose()
    assert shown.ended == "the connection has ended: lost: the client's socket ended without a close"
    assert broker.tracing.views() == ()


async def test_what_cannot_be_traced_is_refused_with_a_sentence(broker: Broker, tmp_path: Path) -> None:
    file = str(tmp_path / "t")
    unknown = await asked(broker, "trace", what="gast", on=True, file=file)
    assert unknown["kind"] == "NotFound"
    assert "'gast' is no connection's number, no user, and no address" in unknown["error"]
    await ask(broker, "trace", what="guest", on=True, file=file)
    twice = await asked(broker, "trace", what="guest", on=True, file=file)
    assert f"user guest is being traced already, into {file}" in twice["error"]
    nowhere = await asked(broker, "trace", what="127.0.0.1", on=True, file=str(tmp_path / "no" / "t"))
    assert "cannot be opened: No such file or directory" in nowhere["error"]
    assert "'x' is not being traced; guest is" in (await asked(broker, "trace", what="x", on=False))["error"]
    for bad in ({"what": 1, "on": True}, {"what": "guest", "on": 1}, {"what": "g", "on": True, "file": 1}):
        assert "must be" in (await asked(broker, "trace", **bad))["error"]
    assert [trace.what for trace in broker.tracing.views()] == ["guest"]


# --- into what ------------------------------------------------------------------------------------


async def test_a_file_is_its_owners_alone_and_has_a_line_a_frame(broker: Broker, tmp_path: Path) -> None:
    """A line has time, connection, direction, frame; the answer to off has the line count."""
    client = await connect(broker).open()
    file = tmp_path / "trace"
    on = await asked(broker, "trace", what=number_of(client), on=True, file=str(file))
    assert on["result"]["target"] == f"connection {number_of(client)} (user guest, from {client.peer})"
    await client.call(Begin, begin(1))
    off = await asked(broker, "trace", what=number_of(client), on=False)
    assert off["result"] == {**on["result"], "lines": 2, "ended": "it was switched off"}
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    first, second = file.read_text().splitlines()
    assert f"Z connection {number_of(client)} <- ch 1 BEGIN " in first
    assert " -> ch 1 BEGIN remote-channel=1 " in second


async def test_a_file_that_takes_no_more_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogRecorder()
    monkeypatch.setattr(trace_sinks, "_log", log)
    monkeypatch.setattr(trace_sinks, "FILE_BYTES_MAX", 1024 * 1024)
    async with running_broker() as broker:
        client = await connect(broker).open()
        await ask(broker, "trace", what="guest", on=True, file="/dev/full")
        file = tmp_path / "big"
        file.write_bytes(bytes(1024 * 1024))
        await ask(broker, "trace", what="127.0.0.1", on=True, file=str(file))
        await ask(broker, "trace", what=number_of(client), on=True, file=str(file))
        await client.call(Begin, begin(1))
        full, _, bounded = broker.tracing.views()
        assert full.ended == "the file cannot be written: No space left on device"
        assert bounded.ended == "the file has 1 MiB"
        assert len(log.of("warning")) == 2
        assert file.stat().st_size == 1024 * 1024
        await client.call(Begin, begin(2))


async def test_a_terminal_gets_lines_as_they_come_until_the_trace_is_switched_off() -> None:
    async with running_broker() as broker, trio.open_nursery() as nursery:
        client = await connect(broker).open()
        ours, theirs = memory_stream_pair()
        nursery.start_soon(serve, broker, theirs)
        received = Answers(ours)
        await ours.send_all(b'{"op": "trace", "arguments": {"what": "guest", "on": true}}\n')
        shown = {"what": "guest", "target": "user guest", "into": "a terminal", "lines": 0, "ended": None}
        assert (await received.next())["result"] == shown
        await client.call(Begin, begin(1))
        lines: list[str] = []
        while len(lines) < 2:
            lines += (await received.next())["lines"]
        assert [line.split()[3:6] for line in lines] == [["<-", "ch", "1"], ["->", "ch", "1"]]
        await ask(broker, "trace", what="guest", on=False)
        assert (await received.next())["ended"] == "it was switched off"
        assert await received.rest() == b""


async def test_a_terminal_that_goes_ends_its_trace() -> None:
    async with running_broker() as broker, trio.open_nursery() as nursery:
        client = await connect(broker).open()
        ours, theirs = memory_stream_pair()
        nursery.start_soon(serve, broker, theirs)
        await ours.send_all(b'{"op": "trace", "arguments": {"what": "guest", "on": true}}\n')
        assert (await Answers(ours).next())["ok"]
        assert client.task.writer.tap is not None
        await ours.aclose()
        await settle_down()
        assert broker.tracing.views() == ()
        assert client.task.writer.tap is None


async def test_a_terminal_that_asks_for_nothing_traceable_is_told() -> None:
    async with running_broker() as broker, trio.open_nursery() as nursery:
        for asked, error in ((b'"gast"', "'gast' is no connection's number"), (b"1", "it must be a string")):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, broker, theirs)
            await ours.send_all(b'{"op": "trace", "arguments": {"what": %b, "on": true}}\n' % asked)
            assert error in (await Answers(ours).next())["error"]


async def test_what_a_slow_terminal_does_not_take_is_counted_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker holds a bounded number of lines for it."""
    monkeypatch.setattr(trace_sinks, "LINES_WAITING_MAX", 3)
    sink = trace_sinks.StreamSink()
    sink.write(1, "p", ["a", "b"])
    sink.write(1, "p", ["c", "d", "e"])
    sink.write(1, "p", ["f"])
    lines, left_out = await sink.take()
    assert [line[-1] for line in lines] == ["a", "b", "c"]
    assert left_out == 3
    sink.write(1, "p", ["g"])
    assert (await sink.take())[1] == 0


def test_a_line_cannot_steer_a_terminal() -> None:
    [line] = trace_sinks.stamped(1, ["<- \x1b[2J\nforged"])
    assert line.endswith("connection 1 <- \\x1b[2J\\nforged")


class Answers:
    """What the admin socket says, line by line."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def next(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some(65_536)
            assert data, "the broker hung up"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def rest(self) -> bytes:
        while data := await self._stream.receive_some(65_536):
            self._buffer += data
        return self._buffer
