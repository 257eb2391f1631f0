"""A data folder that an earlier version wrote is read, with all that was in it.

``tests/folders/format-1`` was written by the version of 2026-11-22, before declarations were planned and
applied: one of everything that is declared, and two messages in each kind of queue. It is not to be made
anew; a version that writes another format reads this one all the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from amqp10broker import Broker, Config
from amqp10broker.metadata.definitions import export
from tests.support.declaring import declare

FOLDER = Path(__file__).parent.parent / "folders" / "format-1"


async def test_what_an_earlier_version_kept_is_there(tmp_path: Path) -> None:
    """What is declared, the numbers of queues, and the messages."""
    folder = tmp_path / "data"
    shutil.copytree(FOLDER, folder)
    async with Broker(Config(port=0, data_dir=str(folder), admin_socket="")) as broker:
        expected = json.loads(FOLDER.with_suffix(".json").read_text())
        assert json.loads(json.dumps(export(broker.catalog))) == expected["definitions"]
        shop = broker.catalog.lookup_vhost("shop")
        facts = {queue.name: [queue.number, queue.declaration_id] for queue in shop}
        assert facts == expected["queues"]
        for name in facts:
            assert shop.lookup(name).handle.ready == 2
        made, _ = declare(broker.catalog, shop, "another", arguments={"x-queue-type": "classic"})
        assert made.number == expected["next number"]
