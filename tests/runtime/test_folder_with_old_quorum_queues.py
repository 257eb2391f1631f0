"""A data folder whose quorum queues were written before format 3 is read, with all that was in them.

``tests/folders/quorum`` has every kind of command in its journal: of queues with and without a delivery
limit, of one that keeps dead letters, of one with a single active consumer, of one that was deleted; and of
a classic queue. The file beside it says what a consumer got of each at the next start: body, delivery-count,
whether it is the first delivery, and how often somebody had it. It was written by the code that wrote such
journals, and is not to be made anew.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from amqp10broker import Broker, Config
from amqp10broker.message.amqp10 import decode_head
from amqp10broker.queues.commands import Credit, Subscribe
from amqp10broker.queues.effects import CreditReply, Deliver, Effect
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.storage.folder import FORMAT
from tests.support.askers import asker_at

FOLDER = Path(__file__).parent.parent / "folders" / "quorum"
EXPECTED = json.loads(FOLDER.with_suffix(".json").read_text())


async def all_of(broker: Broker, name: str) -> list[list[object]]:
    """What a consumer gets of a queue."""
    queue = broker.catalog.lookup_vhost("/").lookup(name)
    mailbox: Mailbox[list[Effect]] = Mailbox()
    consumer = asker_at(queue, mailbox).consumer()
    queue.handle.post(Subscribe(consumer, False))
    queue.handle.post(Credit(consumer, 0, 1000, False, 0))
    told: list[Effect] = []
    while not any(isinstance(each, CreditReply) for each in told):
        for letter in await mailbox.take_all():
            told += letter
    rows: list[list[object]] = []
    for effect in told:
        if isinstance(effect, Deliver):
            for head, body in effect.messages:
                header, annotations = decode_head(head)
                had = annotations.get("x-acquired-count", 0)
                rows.append([body.decode(), header.delivery_count or 0, header.first_acquirer, had])
    return rows


async def test_what_old_quorum_queues_had_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(FOLDER, folder)
    config = Config(port=0, data_dir=str(folder), admin_socket="")
    async with Broker(config) as broker:
        vhost = broker.catalog.lookup_vhost("/")
        assert sorted(queue.name for queue in vhost) == sorted(EXPECTED)
        for name, expected in EXPECTED.items():
            assert await all_of(broker, name) == expected["messages"]
            assert (vhost.lookup(name).handle.figures().messages_dlx or 0) == expected["dlx"]
    # Old entries and new ones together: what was handed out came back with one failed delivery more.
    async with Broker(config) as broker:
        for name in ("limited", "tail", "dead", "single"):
            bodies = sorted(str(row[0]) for row in await all_of(broker, name))
            assert bodies == sorted(row[0] for row in EXPECTED[name]["messages"])


async def test_an_earlier_broker_refuses_the_folder_from_now_on(tmp_path: Path) -> None:
    """It knows neither entries nor their states, and must not take them for damage."""
    folder = tmp_path / "data"
    shutil.copytree(FOLDER, folder)
    assert (folder / "format").read_text().strip().endswith("format 2")
    async with Broker(Config(port=0, data_dir=str(folder), admin_socket="")):
        pass
    assert FORMAT == 4
    assert (folder / "format").read_text().strip().endswith("format 4")
