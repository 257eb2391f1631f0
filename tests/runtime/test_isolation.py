"""One connection's trouble is its own: crashes, clients that do not read, messages of 16 MiB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.auth.login import Peer
from amqp10broker.config import FlowSettings
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.connection10 import Connection10
from amqp10broker.runtime.connections.session_task import CONTROL_BYTES_MAX, PORTION, READS_MAX
from amqp10broker.runtime.connections.sockets import CLOSE_WAIT_S
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.runtime.conftest import LogRecorder
from tests.support import rawframes as raw
from tests.support.trioclient import Client, connect, pipe_pair, queue_counts, running_broker, settle_down


class Fault(Exception):
    """A fault of ours, on purpose."""


def failing_once(owner: type, method: str) -> Callable[..., Any]:
    """Wrap the method so that its first call fails and later calls work."""
    original = getattr(owner, method)
    failed = False

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise Fault("on purpose")
        return original(*args, **kwargs)

    return wrapper


async def round_trip(client: Client, queue: str, handle: int, number: int) -> None:
    await client.call(amqp10.Disposition, raw.transfer(handle, number, b"message %d" % number))
    await client.send(raw.credit(handle + 1, 1, delivery_count=number))
    while type((got := await client.next()).body) is not amqp10.Transfer:
        pass
    assert raw.body_of(got.payload) == b"message %d" % number
    await client.send(raw.disposition(got.body.delivery_id, state=amqp10.Accepted()))


async def with_links(client: Client, queue: str) -> Client:
    await client.send(raw.attach_sender(0, queue), raw.attach_receiver(1, queue))
    await client.take(amqp10.Attach, 2)
    return client


FAULTS = [
    (LinkPublisher, "on_deliveries", raw.transfer(0, 0, b"x")),
    (LinkConsumer, "on_flow", raw.credit(1, 10)),
    (BrokerSession, "on_effects", raw.transfer(0, 0, b"x")),
    (BrokerSession, "pump", raw.transfer(0, 0, b"x")),
    (BrokerSession, "take_commands", raw.transfer(0, 0, b"x")),
    (Connection10, "_pass_on", raw.transfer(0, 0, b"x")),
]


@pytest.mark.parametrize(("owner", "method", "said"), FAULTS, ids=[f"{o.__name__}.{m}" for o, m, _ in FAULTS])
async def test_crash_ends_its_own_connection_only_and_is_logged_once_with_its_cause(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, said: bytes
) -> None:
    """A fault in any task of a connection closes it with internal-error; the neighbour does not notice."""
    async with running_broker() as broker:
        good = await with_links(await connect(broker).open(), "good")
        bad = await with_links(await connect(broker).open(channels=2), "bad")
        await good.idle()
        await bad.idle()
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, failing_once(owner, method))
            await bad.submit(said)
        got = await bad.rest()
        close = got[-1].body
        assert type(close) is amqp10.Close
        assert close.error.condition == "amqp:internal-error"
        assert "on purpose" not in (close.error.description or ""), (
            "inner texts are not the client's business"
        )
        await settle_down()
        assert [connection.peer for connection in broker.connections.values()] == [good.peer]
        await round_trip(good, "good", 0, 0)
        await round_trip(good, "good", 0, 1)
    errors = log.of("error")
    assert len(errors) == 1, errors
    assert "on purpose" in repr(errors[0][1]["exc_info"])


class Stop(BaseException):
    """What ends the program, as the interrupt of an operator."""


async def test_of_a_fault_beside_a_stop_the_fault_is_logged_and_the_stop_goes_on(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of a connection end in the same moment, one by a fault and one by the stop."""

    async def run(_self: Connection10) -> None:
        raise BaseExceptionGroup("both", [Fault("on purpose"), BaseExceptionGroup("one", [Stop()])])

    monkeypatch.setattr(Connection10, "run", run)
    async with running_broker() as broker:
        ours, theirs = memory_stream_pair()
        await ours.send_all(raw.SASL_HEADER)
        with pytest.raises(BaseExceptionGroup) as caught:
            await broker.listener.serve_stream(theirs, "a peer", Peer(loopback=True, address="a peer"))
        assert broker.connections == {}
    (inner,) = caught.value.exceptions
    assert [type(each) for each in inner.exceptions] == [Stop]
    ((event, fields),) = log.of("error")
    assert event == "connection failed by a fault in the broker"
    assert [type(each) for each in fields["exc_info"].exceptions] == [Fault]


async def test_crash_of_the_writer_ends_its_own_connection_only(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed writer cannot send the client a reason, but the log has it, once."""
    async with running_broker() as broker:
        good = await with_links(await connect(broker).open(), "good")
        victim = await connect(broker).open()
        await settle_down()

        async def failing_send(_data: bytes) -> None:
            raise Fault("on purpose")

        monkeypatch.setattr(victim.task.stream, "send_all", failing_send, raising=False)
        await victim.send(raw.attach_sender(0, "bad"))
        await victim.rest()
        await settle_down()
        assert [connection.peer for connection in broker.connections.values()] == [good.peer]
        await round_trip(good, "good", 0, 0)
    errors = log.of("error")
    assert len(errors) == 1, errors
    assert "on purpose" in repr(errors[0][1]["exc_info"])


async def test_crash_gives_unsettled_messages_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    good = await with_links(await connect(broker).open(), "q")
    for number in range(5):
        await good.send(raw.transfer(0, number, b"%d" % number))
    bad = await connect(broker).open()
    await bad.send(raw.attach_receiver(0, "q"), raw.credit(0, 3))
    await bad.take(amqp10.Transfer, 3)
    assert queue_counts(broker, "q") == (2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(LinkConsumer, "on_updated", failing_once(LinkConsumer, "on_updated"))
        await bad.submit(raw.disposition(0, 2))
    await bad.rest()
    assert queue_counts(broker, "q") == (5, 0)
    await good.send(raw.credit(1, 5))
    assert [raw.body_of(each.payload) for each in await good.take(amqp10.Transfer, 5)] == [
        b"%d" % n for n in range(5)
    ]


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "tcp_back_pressure_rabbitmq_internal_flow_classic_queue",
    "tcp_back_pressure_rabbitmq_internal_flow_quorum_queue",
)
@pytest.mark.parametrize("direct", [False, True], ids=["stream", "socket"])
async def test_client_that_stops_reading_blocks_only_itself(broker: Broker, direct: bool) -> None:
    """At most one queue credit of messages leaves the queue for it; other clients consume the rest."""
    publisher = await connect(broker).open()
    await publisher.submit(raw.attach_sender(0, "q"))
    for number in range(1000):
        await publisher.send(raw.transfer(0, number, b"%04d" % number + b"." * 1000, settled=True))
        if number % 50 == 49:
            await publisher.idle()
    assert queue_counts(broker, "q") == (1000, 0)
    stuck = await connect(broker, pair=partial(pipe_pair, 4096, direct=direct)).open()
    await stuck.submit(raw.attach_receiver(0, "q"), raw.credit(0, 100_000))
    ready, unsettled = queue_counts(broker, "q")
    assert unsettled <= FlowSettings().max_queue_credit
    assert ready + unsettled == 1000
    for _ in range(10):  # nothing moves by itself
        await trio.sleep(10)
        assert queue_counts(broker, "q") == (ready, unsettled)
    other = await connect(broker).open()
    await other.send(raw.attach_receiver(0, "q"), raw.credit(0, 10_000))
    got = await other.take(amqp10.Transfer, ready)
    numbers = [int(raw.body_of(each.payload)[:4]) for each in got]
    assert numbers == sorted(numbers)
    await other.call(amqp10.Attach, raw.attach_sender(1, "elsewhere"))
    await other.call(amqp10.Disposition, raw.transfer(1, 0, b"x"))
    assert queue_counts(broker, "elsewhere") == (1, 0)
    # When it reads again, everything that was kept for it arrives.
    rest = await stuck.take(amqp10.Transfer, unsettled)
    assert sorted([int(raw.body_of(each.payload)[:4]) for each in rest] + numbers) == list(range(1000))


@pytest.mark.parametrize("size", [100, 1_000, 10_000, 70_000, 120_000])
async def test_deliveries_beyond_the_writers_buffer_go_on_without_a_nudge(broker: Broker, size: int) -> None:
    """A client that reads gets all the credit it granted, though a batch exceeds writer_buffer_bytes."""
    publisher = await connect(broker).open()
    await publisher.submit(raw.attach_sender(0, "q"))
    for number in range(20):
        await publisher.send(raw.transfer(0, number, b"%04d" % number + b"." * size, settled=True))
    await settle_down()
    for pair in (None, partial(pipe_pair, 10_000_000, direct=True), partial(pipe_pair, 5_000, direct=True)):
        client = await (connect(broker, pair=pair) if pair else connect(broker)).open(max_frame_size=131_072)
        await client.send(raw.attach_receiver(0, "q"), raw.credit(0, 20))
        got = await client.idle()
        whole = [each for each in got if type(each.body) is amqp10.Transfer and not each.body.more]
        assert len(whole) == 20
        await client.lose()
        assert queue_counts(broker, "q") == (20, 0)


async def test_flooder_that_never_reads_is_stopped_by_its_own_socket(broker: Broker) -> None:
    """It sends echo requests without reading: the session stops, then the reader, then TCP pushes back."""
    good = await with_links(await connect(broker).open(), "good")
    flooder = await connect(broker, pair=partial(pipe_pair, 65_536)).open()
    asked = 0

    async def flood() -> None:
        nonlocal asked
        block = raw.flow(0, echo=True) * 1000
        while True:
            await flooder.send(block)
            asked += 1000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    task = flooder.task
    request_bytes = len(raw.flow(0, echo=True))
    assert task.bytes_received < CONTROL_BYTES_MAX * 3 + (READS_MAX + 3) * 65_536
    assert task.writer.waiting_bytes < CONTROL_BYTES_MAX * 3
    (session,) = task.parts.values()
    assert session.inbox.most <= READS_MAX + 1
    await round_trip(good, "good", 0, 0)
    # It reads at last: every request that got in whole is answered exactly once.
    got = await flooder.idle()
    assert {type(each.body) for each in got} == {amqp10.Flow}
    assert task.bytes_received // request_bytes - 10 <= len(got) <= task.bytes_received // request_bytes


async def test_connection_of_a_client_that_never_reads_can_be_ended(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, log: LogRecorder
) -> None:
    """A session that waits for its client to read does not keep a failed connection open for ever."""
    flooder = await connect(broker, pair=partial(pipe_pair, 65_536)).open(channels=2)
    with trio.move_on_after(10):
        while True:
            await flooder.send(raw.flow(0, echo=True) * 1000)
    task = flooder.task
    assert any(session.output.overfull for session in task.parts.values())
    task.crash(Fault("on purpose"))
    await trio.sleep(CLOSE_WAIT_S + 1)
    assert flooder.task is None


@pytest.mark.parametrize("reader_waits", [False, True])
async def test_connection_of_a_client_that_ended_its_session_and_never_reads_can_be_ended(
    broker: Broker, reader_waits: bool
) -> None:
    """This holds whether the reader has passed the client's end frame to the session or still waits to do
    so.
    """
    flooder = await connect(broker, pair=partial(pipe_pair, 65_536)).open()
    task = flooder.task
    (session,) = task.parts.values()
    while not (session.reads.full if reader_waits else session.output.overfull):
        await flooder.submit(raw.flow(0, echo=True) * PORTION)
    await flooder.submit(raw.frame(0, amqp10.End()))
    assert not task.parts
    task.close("on purpose", node_stops=False)
    await trio.sleep(CLOSE_WAIT_S + 1)
    assert flooder.task is None


async def publish_large(client: Client, handle: int, body: bytes) -> None:
    for each in raw.pieces(handle, 0, body, 130_000):
        await client.send(each)
    await client.until(amqp10.Disposition)


@pytest.mark.parametrize("frame_bytes", [131_072, 16_384, 512])
async def test_message_of_16_mib_delays_another_session_by_no_more_than_a_frame(
    broker: Broker, frame_bytes: int
) -> None:
    """At most a full writer buffer, or one frame, precedes another session's delivery."""
    publisher = await connect(broker).open(channels=1)
    await publisher.send(raw.attach_sender(0, "large"), raw.attach_sender(1, "small"))
    await publisher.take(amqp10.Flow, 2)
    await publish_large(publisher, 0, b"L" * (16 * 1024 * 1024 - 100))
    pair = partial(pipe_pair, 1000)
    client = await connect(broker, pair=pair).open(channels=2, max_frame_size=frame_bytes)
    await client.call(amqp10.Attach, raw.attach_receiver(0, "small", channel=1), raw.credit(0, 10, channel=1))
    await client.send(raw.attach_receiver(0, "large", channel=0), raw.credit(0, 10))
    await settle_down()  # the large one stands in the writer as far as it may
    before = 0
    for number in range(3):
        await publisher.call(amqp10.Disposition, raw.transfer(1, number + 1, b"%d" % number))
        await settle_down()
        while True:
            got = await client.next()
            if type(got.body) is not amqp10.Transfer:
                continue
            if got.channel == 1:
                assert raw.body_of(got.payload) == b"%d" % number
                break
            before += got.size
        # The frame under way, and the buffer of that session (or the one frame that exceeds it).
        assert before <= broker.config.writer_buffer_bytes + 2 * frame_bytes + 1000, before
        before = 0
        if frame_bytes == 131_072:
            continue
    # And the large message arrives whole, whatever was sent between its frames.
    size = 0
    while True:
        got = await client.next()
        size += len(got.payload)
        if type(got.body) is amqp10.Transfer and not got.body.more:
            break
    assert size < 16 * 1024 * 1024


async def test_large_message_shares_the_wire_frame_by_frame(broker: Broker) -> None:
    publisher = await connect(broker).open()
    await publisher.send(raw.attach_sender(0, "a"), raw.attach_sender(1, "b"))
    await publisher.take(amqp10.Flow, 2)
    for handle in (0, 1):
        for each in raw.pieces(handle, handle, b"L" * 2_000_000, 130_000):
            await publisher.send(each)
        await publisher.until(amqp10.Disposition)
    client = await connect(broker, pair=partial(pipe_pair, 1000)).open(channels=2, max_frame_size=65_536)
    for channel, queue in enumerate("ab"):
        await client.send(raw.attach_receiver(0, queue, channel=channel), raw.credit(0, 1, channel=channel))
    frames = [each for each in await client.idle() if type(each.body) is amqp10.Transfer]
    middle = Counter(each.channel for each in frames[8:-8])
    assert abs(middle[0] - middle[1]) <= 4
    longest = run = 1
    for one, other in pairwise(frames[8:-8]):
        run = run + 1 if one.channel == other.channel else 1
        longest = max(longest, run)
        # Two frames of a little less than 64 KiB fill the writer's buffer.
    assert longest <= 4


async def test_close_by_a_client_that_does_not_read_its_answer_ends_in_time(broker: Broker) -> None:
    """The client is silent and the pipe is full: the socket closes after the close-wait at the latest."""
    publisher = await connect(broker).open()
    await publisher.call(amqp10.Flow, raw.attach_sender(0, "q"))
    for number in range(100):
        await publisher.send(raw.transfer(0, number, b"." * 1000, settled=True))
    await settle_down()
    client = await connect(broker, pair=partial(pipe_pair, 2000)).open()
    await client.submit(raw.attach_receiver(0, "q"), raw.credit(0, 100))
    await client.send(raw.frame(0, amqp10.Close()))
    await trio.sleep(CLOSE_WAIT_S + 1)
    assert client.task is None
    assert sum(queue_counts(broker, "q")) == 100
    assert queue_counts(broker, "q")[1] == 0
