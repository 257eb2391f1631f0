"""Frames recorded by a broker: `trace` with frames, and the folder of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.errors import StorageError
from amqp10broker.observe.frames.records import KnownLink, Listening, Record, RecordedFrame, read_lines
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Flow, Open
from amqp10broker.protocols.connection import WireProtocol
from tests.support.admin_requests import ask, asked
from tests.support.rawframes import attach_receiver, attach_sender, transfer
from tests.support.trioclient import connect, running_broker, settle_down
from tests.support.trioclient091 import connect091


def records_of(path: Path) -> list[Record]:
    return list(read_lines(path.read_text().splitlines()))


def words(records: list[Record]) -> list[str]:
    return [
        " ".join(record.text.split()[:4:3] if " ch " in record.text else record.text.split()[:2])
        for record in records
        if isinstance(record, RecordedFrame)
    ]


async def test_everything_is_recorded_from_the_first_byte_of_a_connection(tmp_path: Path) -> None:
    """The recording ends with the trace; times grow."""
    path = tmp_path / "frames.jsonl"
    async with running_broker() as broker:
        await ask(broker, "declare-queue", name="q")
        begun = await asked(broker, "trace", what="everything", on=True, file=str(path), frames=True)
        assert begun["ok"]
        client = await connect(broker).open()
        await client.call(Flow, attach_sender(0, "/queues/q"))
        await client.submit(transfer(0, 0, b"hello"))
        ended = await asked(broker, "trace", what="everything", on=False)
        assert ended["result"]["lines"] == len(path.read_text().splitlines()) - 1
        await client.submit(transfer(0, 1, b"more"))
    records = records_of(path)
    first = records[0]
    assert isinstance(first, Listening)
    assert first.begins
    assert first.protocol is WireProtocol.AMQP_10
    found = words(records)
    assert found[0] == "<- AMQP"
    assert found.count("<- TRANSFER") == 1
    assert "-> DISPOSITION" in found
    assert [each.at_ns for each in records] == sorted(each.at_ns for each in records)
    bodies = [type(each.frame.body) for each in records if isinstance(each, RecordedFrame)]
    assert {Open, Begin, Attach} <= set(bodies)


async def test_links_that_are_there_already_are_told_first(tmp_path: Path) -> None:
    """Only links with the requested address are listed."""
    path = tmp_path / "frames.jsonl"
    async with running_broker() as broker:
        await ask(broker, "declare-queue", name="q")
        await ask(broker, "declare-queue", name="r")
        client = await connect(broker).open()
        await client.call(Flow, attach_sender(5, "/queues/q"), attach_receiver(6, "/queues/r"))
        await settle_down()
        await ask(broker, "trace", what="/queues/q", on=True, file=str(path), frames=True)
    listening, known = records_of(path)[:2]
    assert isinstance(listening, Listening)
    assert not listening.begins
    assert isinstance(known, KnownLink)
    assert (known.role, known.address, known.remote_handle) == ("sender", "/queues/q", 5)
    assert not [each for each in records_of(path)[2:] if isinstance(each, KnownLink)]


async def test_consumers_of_amqp_091_are_told_too(tmp_path: Path) -> None:
    """They are listed by tag and queue; the client's later methods follow as frames."""
    path = tmp_path / "frames.jsonl"
    async with running_broker() as broker:
        client = await connect091(broker).open()
        await client.call(1, methods.QueueDeclare(queue="q"), methods.QueueDeclareOk)
        await client.call(1, methods.BasicConsume(queue="q", consumer_tag="t"), methods.BasicConsumeOk)
        number = str(client.task.number)
        await ask(broker, "trace", what=number, on=True, file=str(path), frames=True)
        await client.call(1, methods.BasicCancel(consumer_tag="t"), methods.BasicCancelOk)
    listening, known, *rest = records_of(path)
    assert isinstance(listening, Listening)
    assert listening.protocol is WireProtocol.AMQP_091
    assert isinstance(known, KnownLink)
    assert (known.channel, known.name, known.address, known.handle) == (1, "t", "q", None)
    assert words(rest)[:2] == ["<- basic.cancel", "-> basic.cancel-ok"]


async def test_a_folder_of_the_configuration_gets_all_frames(tmp_path: Path) -> None:
    """The broker makes the folder; after a restart it writes another file."""
    folder = tmp_path / "frames"
    async with running_broker(record_frames=str(folder)) as broker:
        await connect(broker).open()
    (path,) = folder.iterdir()
    assert "-> OPEN" in words(records_of(path))
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/frames: cannot be made: "):
        async with running_broker(record_frames=str(tmp_path / "file" / "frames")):
            raise AssertionError("it runs")
