"""Recorded clients played again against a broker: nothing differs, and what differs is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from trio.testing import memory_stream_pair

from amqp10broker.config import FlowSettings
from amqp10broker.observe.frames.records import read_lines
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from amqp10broker.tools.replay.player import Player, ReplayLogin, Script, Step, read_script
from amqp10broker.tools.replay.replay import Replay
from tests.support import rawframes as raw
from tests.support.admin_requests import ask
from tests.support.trioclient import connect, running_broker, settle_down
from tests.support.trioclient091 import connect091, message

Scene = Callable[[Broker], Awaitable[None]]


def script_of(path: Path) -> Script:
    return read_script(read_lines(path.read_text().splitlines()))


async def recorded(scene: Scene, path: Path, *queues: dict[str, Any], **settings: Any) -> Script:
    """Record a scene of clients with a broker; return the script."""
    async with running_broker(**settings) as broker:
        for queue in queues:
            await ask(broker, "declare-queue", **queue)
        await ask(broker, "trace", what="everything", on=True, file=str(path), frames=True)
        await scene(broker)
        await settle_down()
        await ask(broker, "trace", what="everything", on=False)
    return script_of(path)


async def played(script: Script, broker: Broker, **given: Any) -> list[str]:
    """Play a recording to a broker; return the differences."""
    left_out: list[str] = given.pop("left_out", [])
    replay = Replay(script, given.pop("login", ReplayLogin("guest", "guest")), **{"fast": True, **given})
    async with trio.open_nursery() as nursery:
        streams: dict[Player, Any] = {}
        while True:
            for player in replay.wanted(trio.current_time()):
                ours, theirs = memory_stream_pair()
                broker.serve(theirs, peer=f"replay-{player.part.number}")
                streams[player] = ours
                replay.connected(player, trio.current_time())
                nursery.start_soon(read, replay, player, ours)
            wake = replay.advance(trio.current_time())
            for player, stream in list(streams.items()):
                data = bytes(player.unsent)
                player.unsent.clear()
                if data:
                    await stream.send_all(data)
                if player.closed:
                    await stream.aclose()
                    del streams[player]
            if wake is None:
                break
            with trio.move_on_at(min(wake, trio.current_time() + 0.01)):
                await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    left_out += [each for player in replay.players for each in player.left_out]
    return [str(each) for each in replay.differences()]


async def read(replay: Replay, player: Player, stream: Any) -> None:
    while True:
        try:
            data = await stream.receive_some(65_536)
        except trio.ClosedResourceError:
            return
        if not data:
            replay.lost(player, "the broker closed the socket without a close frame")
            return
        replay.receive(player, bytes(data), trio.current_time())


async def again(script: Script, *queues: dict[str, Any], **settings: Any) -> list[str]:
    """Play it to a new broker with these queues; return the differences."""
    async with running_broker(**settings) as broker:
        for queue in queues:
            await ask(broker, "declare-queue", **queue)
        return await played(script, broker)


Q = {"name": "q"}


async def sends_and_receives(broker: Broker) -> None:
    client = await connect(broker).open()
    await client.call(amqp10.Flow, raw.attach_sender(0, "/queues/q"))
    whole = b"".join(raw.pieces(0, 3, b"x" * 5000, 1000))
    await client.send(*[raw.transfer(0, number, b"x" * number) for number in range(3)], whole)
    await client.take(amqp10.Disposition, 1)
    await client.send(raw.attach_receiver(1, "/queues/q"), raw.credit(1, 2))
    await client.take(amqp10.Transfer, 2)
    await client.send(raw.disposition(1, state=amqp10.Accepted()), raw.credit(1, 2, delivery_count=2))
    await client.take(amqp10.Transfer, 2)
    await client.submit(
        raw.disposition(0, state=amqp10.Accepted()), raw.disposition(2, 3, state=amqp10.Accepted())
    )
    await client.call(amqp10.Detach, raw.frame(0, amqp10.Detach(handle=1, closed=True)))
    await client.call(amqp10.Close, raw.frame(0, amqp10.Close()))


async def test_against_a_broker_like_the_recorded_one_nothing_differs(tmp_path: Path) -> None:
    script = await recorded(sends_and_receives, tmp_path / "f", Q)
    async with running_broker() as broker:
        await ask(broker, "declare-queue", **Q)
        assert await played(script, broker) == []
        await settle_down()
        queue = broker.catalog.lookup_vhost("/").find("q")
        assert (queue.handle.ready, queue.handle.unsettled) == (0, 0)
        assert not broker.connections


async def test_a_recording_takes_as_long_as_it_took(tmp_path: Path) -> None:
    async def slow(broker: Broker) -> None:
        client = await connect(broker).open()
        await client.call(amqp10.Close, raw.frame(0, amqp10.Close()))

    script = await recorded(slow, tmp_path / "f")
    (part,) = script.parts
    end = part.steps[-1]
    assert isinstance(end.frame.body, amqp10.Close)
    late = [each if each.index < end.index - 1 else later(each, 30) for each in part.steps]
    part.steps[:] = late
    length = (part.steps[-1].at_ns - part.steps[0].at_ns) / 1e9
    assert length >= 30
    for fast, at_least, at_most in ((True, 0.0, 5.0), (False, length - 0.1, length + 5.0)):
        async with running_broker() as broker:
            began = trio.current_time()
            assert await played(script, broker, fast=fast) == []
            assert at_least <= trio.current_time() - began <= at_most


def later(step: Step, seconds: float) -> Step:
    return replace(step, at_ns=step.at_ns + round(seconds * 1e9))


async def test_a_broker_that_grants_less_is_told_of_and_gets_all_the_same(tmp_path: Path) -> None:
    """Messages wait for the broker's credit; frames are cut to its size."""
    script = await recorded(sends_and_receives, tmp_path / "f", Q)
    (found,) = await again(script, Q, flow=FlowSettings(max_link_credit=2), max_frame_size_bytes=512)
    assert found.endswith("to /queues/q: credit 170 at first in the recording, 2 now")
    assert found.startswith("credit: connection ")


async def test_a_queue_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Its consequences are not reported as well."""
    script = await recorded(sends_and_receives, tmp_path / "f", Q)
    found = await again(script)
    assert [each.split(": ")[0] for each in found] == ["error"] * len(found)
    assert "not ended by the broker in the recording, ended by the broker with amqp:not-found now" in found[0]


async def test_an_outcome_that_is_another_is_told_with_its_message(tmp_path: Path) -> None:

    async def scene(broker: Broker) -> None:
        client = await connect(broker).open()
        await client.call(amqp10.Flow, raw.attach_sender(0, "/queues/q"))
        for number in range(4):
            await client.call(amqp10.Disposition, raw.transfer(0, number, b"x"))

    script = await recorded(scene, tmp_path / "f", Q)
    full = {"name": "q", "arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    (found,) = await again(script, full)
    assert found.startswith("outcome: ")
    assert "of 4 messages, message " in found
    assert "accepted in the recording, rejected" in found


async def test_messages_that_do_not_come_are_missing(tmp_path: Path) -> None:
    """The recording lacks earlier messages."""
    number = 5

    async def scene(broker: Broker) -> None:
        client = await connect(broker).open()
        await client.send(raw.attach_receiver(0, "/queues/q"), raw.credit(0, number))
        await client.take(amqp10.Transfer, number)
        await client.submit(raw.disposition(0, number - 1, state=amqp10.Accepted()))
        await client.vanish()

    path = tmp_path / "f"
    async with running_broker() as broker:
        await ask(broker, "declare-queue", **Q)
        before = await connect091(broker).open()
        await before.submit(1, *[message(1, "q", b"x")] * number)
        await ask(broker, "trace", what="everything", on=True, file=str(path), frames=True)
        await scene(broker)
        await settle_down()
        await ask(broker, "trace", what="everything", on=False)
    script = script_of(path)
    assert len(script.parts) == len(script.left_out) == 1
    (found,) = await again(script, Q)
    assert found.startswith("missing: ")
    assert found.endswith("from /queues/q: 5 of 5 messages did not come")


async def test_addresses_that_the_broker_chose_are_those_of_now(tmp_path: Path) -> None:
    """A sender to a temporary queue of the recording sends to the queue made in this run."""

    async def scene(broker: Broker) -> None:
        client = await connect(broker).open()
        answer = await client.call(
            amqp10.Attach, raw.attach_receiver(0, "", source=amqp10.Source(dynamic=True)), raw.credit(0, 1)
        )
        await client.call(amqp10.Attach, raw.attach_sender(1, answer.source.address))
        await client.until(amqp10.Flow)
        await client.call(amqp10.Transfer, raw.transfer(1, 0, b"x"))
        await client.submit(raw.disposition(0, state=amqp10.Accepted()))

    script = await recorded(scene, tmp_path / "f")
    assert await again(script) == []


async def test_requests_to_management_are_left_out_and_said(tmp_path: Path) -> None:
    """Their contents were not recorded; the rest of the connection is played."""

    async def scene(broker: Broker) -> None:
        client = await connect(broker).open()
        paired: dict[str, Any] = {"name": "pair", "properties": {Symbol("paired"): True}}
        await client.send(
            raw.attach_sender(5, "/management", **paired), raw.attach_receiver(6, "/management", **paired)
        )
        await client.until(amqp10.Flow)
        await client.call(amqp10.Flow, raw.attach_sender(0, "/queues/q"))
        await client.call(amqp10.Disposition, raw.transfer(0, 0, b"x"))

    script = await recorded(scene, tmp_path / "f", Q)
    async with running_broker() as broker:
        await ask(broker, "declare-queue", **Q)
        left_out: list[str] = []
        assert await played(script, broker, left_out=left_out) == []
        assert left_out == ["requests to /management: they are in contents, which were not recorded"]
        queue = broker.catalog.lookup_vhost("/").find("q")
        assert queue.handle.ready == 1


async def works_091(broker: Broker) -> None:
    client = await connect091(broker).open()
    await client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    declared = await client.call(1, methods.QueueDeclare(), methods.QueueDeclareOk)
    for queue in ("q", declared.queue):
        for size in range(5):
            await client.send(1, message(1, queue, b"x" * size))
    encoded = message(1, "nowhere", b"lost")
    plain, mandatory = (methods.BasicPublish("", "nowhere", each) for each in (False, True))
    await client.submit(1, encoded.replace(plain.encode(), mandatory.encode()))
    for queue in ("q", declared.queue):
        await client.send(1, methods.BasicConsume(queue=queue))
    got = [each for _, each in await client.idle() if hasattr(each, "method")]
    tags = [each.method.delivery_tag for each in got if isinstance(each.method, methods.BasicDeliver)]
    assert len(tags) == 10
    await client.send(1, methods.BasicAck(tags[1]), methods.BasicNack(tags[0], requeue=False))
    await client.send(1, methods.BasicAck(tags[6], multiple=True), methods.BasicAck(0, multiple=True))
    await client.send(1, methods.BasicGet(queue="q"))
    await client.until(methods.BasicGetEmpty)
    await client.send(1, methods.QueueDeclare(queue="q", passive=False, durable=False))
    await client.until(methods.ChannelClose)
    await client.send(1, methods.ChannelCloseOk())
    await client.send(0, methods.ConnectionClose(200, "bye"))
    await client.until(methods.ConnectionCloseOk)


async def test_a_client_of_amqp_091_is_played(tmp_path: Path) -> None:
    """It uses the present names, consumer tags and delivery-tags."""
    script = await recorded(works_091, tmp_path / "f", Q)
    async with running_broker() as broker:
        await ask(broker, "declare-queue", **Q)
        assert await played(script, broker) == []
        await settle_down()
        queue = broker.catalog.lookup_vhost("/").find("q")
        assert (queue.handle.ready, queue.handle.unsettled) == (0, 0)


async def test_what_amqp_091_says_otherwise_is_told(tmp_path: Path) -> None:

    async def scene(broker: Broker) -> None:
        client = await connect091(broker).open()
        await client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        for _ in range(3):
            await client.send(1, message(1, "q", b"x"))
            await client.until(methods.BasicAck)
        for _ in range(3):
            await client.send(1, methods.BasicGet(queue="q", no_ack=True))
            await client.next()
        await client.call(1, methods.QueueBind("q", "amq.topic", "k"), methods.QueueBindOk)

    script = await recorded(scene, tmp_path / "f", Q)
    full = {"name": "q", "arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    found = await again(script, full)
    assert [each.split(": ")[0] for each in found] == ["outcome", "outcome"]
    assert "confirmed in the recording, refused (basic.nack) now" in found[0]
    assert "2 of 3 basic.gets, basic.get 2 first: a message in the recording, no message now" in found[1]
    found = await again(script)
    assert "ended by the broker with 404" in found[0]


async def test_connections_keep_the_order_of_what_they_begin_and_end(tmp_path: Path) -> None:
    """The clients declare, publish and consume; with `fast`, the publisher would be first."""

    async def scene(broker: Broker) -> None:
        first = await connect091(broker).open()
        second = await connect091(broker).open()
        await first.call(1, methods.QueueDeclare(queue="mine"), methods.QueueDeclareOk)
        await second.send(1, *[message(1, "mine", b"x")] * 20)
        third = await connect(broker).open()
        await third.send(raw.attach_receiver(0, "/queues/mine"), raw.credit(0, 20))
        await third.take(amqp10.Transfer, 20)
        await third.submit(raw.disposition(0, 19, state=amqp10.Accepted()))
        await first.call(1, methods.QueueDelete(queue="mine"), methods.QueueDeleteOk)

    script = await recorded(scene, tmp_path / "f")
    assert await again(script) == []


async def test_a_broker_that_ends_the_connection_is_told_with_its_reason(tmp_path: Path) -> None:
    script = await recorded(sends_and_receives, tmp_path / "f", Q)
    async with running_broker() as broker:
        (found,) = await played(script, broker, login=ReplayLogin("guest", "guest", vhost="nowhere"))
    assert "the broker closed the connection with amqp:" in found
    assert " frames of the client were left" in found


async def test_the_windows_of_flow_control_are_respected(tmp_path: Path) -> None:
    """With a session window of 1, frames go singly, and all messages arrive."""
    script = await recorded(sends_and_receives, tmp_path / "f", Q)
    found = await again(script, Q, flow=FlowSettings(max_incoming_window=1))
    assert [each.split(": ")[0] for each in found] == ["credit"]
    assert "incoming-window 400 in the recording, 1 now" in found[0]
