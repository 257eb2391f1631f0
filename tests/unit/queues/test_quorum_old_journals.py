"""Journals of before format 4: what their commands did then they do again, and everything is there.

``tests/folders/quorum-records.json.gz`` has the records of six queues of random lives, with a clock that was
set back now and then, files that were cleaned, and (the last one) a log that ends between a decision and the
message that was put again by it; and what a consumer got of each after a start. They are of before format 3.
``quorum-records-3.json.gz`` has such lives of format 3. Both were written by the code that wrote such
journals, and cannot be made anew.
"""

from __future__ import annotations

import gzip
import json
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import NO_BOUND, ConsumerRef, Credit, Subscribe
from amqp10broker.queues.effects import Deliver
from amqp10broker.queues.quorum.command_codec import OLD_PEER, decode_old_commands
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.records import OLD_COMMANDS, OLD_ENTRY, OLD_SNAPSHOT, OLD_STATE, RELOCATED
from amqp10broker.queues.quorum.snapshot import encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings
from tests.support.askers import new_asker
from tests.support.quorum_alone import store_on
from tests.support.small_journal import SmallJournal, SmallRecord

FOLDERS = Path(__file__).parents[2] / "folders"
SETTINGS = [
    QueueSettings(delivery_limit=3),
    QueueSettings(delivery_limit=None),
    QueueSettings(max_length=20, message_ttl_ms=50),
    QueueSettings(
        max_length=30,
        overflow=Overflow.REJECT_PUBLISH,
        dead_letter_exchange="dlx",
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
    ),
]
FILES = {"quorum-records": {OLD_COMMANDS, OLD_SNAPSHOT}, "quorum-records-3": {OLD_ENTRY, OLD_STATE}}
LIVES: dict[str, list[dict[str, Any]]] = {
    name: json.loads(gzip.decompress((FOLDERS / f"{name}.json.gz").read_bytes())) for name in FILES
}
EACH = pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, lives in LIVES.items() for number in range(len(lives))]
)


def journal_of(life: dict[str, Any]) -> SmallJournal:
    journal = SmallJournal()
    for kind, index, payload, file, offset in life["records"]:
        journal.live.setdefault(file, 0)
        journal.files.setdefault(file, []).append(
            SmallRecord(7, kind, index, b64decode(payload), file, offset)
        )
    for file in set(journal.files) - {record[3] for record in life["records"]}:
        del journal.files[file]
        del journal.live[file]
    journal._end = 10**6  # what is appended goes into the next file
    return journal


def opened(journal: SmallJournal, life: dict[str, Any]) -> tuple[QuorumQueue, QuorumStore]:
    store = store_on(journal)
    store.restore(journal.records)
    return store.recovered(SETTINGS[life["settings"]], life["now_ms"]), store


def delivered(queue: QuorumQueue, now_ms: int) -> list[Message]:
    here = new_asker()
    consumer = here.consumer()
    queue.apply(Subscribe(consumer, False), now_ms)
    queue.apply(Credit(consumer, 0, 10_000, False, 0), now_ms)
    told = queue.take_effects()[here.id]
    return [message for each in told if isinstance(each, Deliver) for message in each.messages]


@EACH
def test_an_old_journal_is_read(name: str, number: int) -> None:
    life = LIVES[name][number]
    journal = journal_of(life)
    kinds = {record.kind for record in journal.records}
    assert kinds >= FILES[name]
    assert kinds <= FILES[name] | {RELOCATED}
    queue, _ = opened(journal, life)
    expected = [(b64decode(head), body.encode()) for head, body in life["waiting"]]
    assert [each.message[1].decode() for each in queue.take_dlx()] == life["dead"]
    assert queue.delayed == life["delayed"]
    assert delivered(queue, life["now_ms"]) == expected


@EACH
def test_it_goes_on_as_a_new_one(name: str, number: int) -> None:
    """Old records and new ones together are read again; then the old ones are cleaned away."""
    life = LIVES[name][number]
    journal = journal_of(life)
    old_files = sorted(journal.files)
    queue, _ = opened(journal, life)
    journal = journal.again()
    again, store = opened(journal, life)
    assert encode_snapshot(again) == encode_snapshot(queue)
    for file in old_files:
        for _ in store.relocate(file):
            pass
        journal.drop_oldest()
    assert {record.kind for record in journal.records}.isdisjoint(FILES[name])
    last, _ = opened(journal.again(), life)
    assert encode_snapshot(last) == encode_snapshot(queue)
    assert delivered(last, life["now_ms"]) == delivered(queue, life["now_ms"])


def test_a_credit_of_before_2026_11_22_has_no_bound_of_bytes() -> None:
    """What was handed out for it then must be handed out again when the log is carried out."""
    credit = struct.pack("<IIQBQ", 7, 3, 256, False, 5)
    payload = struct.pack("<QBI", 1234, 2, len(credit)) + credit
    decoded = decode_old_commands(payload)
    assert decoded.now_ms == 1234
    (found,) = decoded.commands
    assert isinstance(found, Credit)
    assert (found.consumer, found.credit, found.room) == (ConsumerRef(OLD_PEER, 7), 256, NO_BOUND)
