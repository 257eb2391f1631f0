"""A node of a cluster serves clients before its quorum queues have begun, if these take long."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from amqp10broker import Broker, Config
from amqp10broker.runtime import broker as broker_module
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.support.cluster_process import free_ports
from tests.support.http_user import http_user
from tests.support.trioclient import settle_down

pytestmark = pytest.mark.real_clock


async def test_what_is_asked_of_a_queue_that_has_not_begun_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is refused, and the queue has its old messages and the new ones."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    config = Config(
        port=free_ports(1), data_dir=str(tmp_path / "a"), admin_socket="", node_name="a",
        cluster_secret_file=str(secret),
    )  # fmt: skip
    publish, quorum = (
        "/exchanges/%2F/amq.default/publish",
        {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    )

    def message(body: str) -> dict[str, object]:
        return {"properties": {}, "routing_key": "q", "payload": body, "payload_encoding": "string"}

    async with Broker(config) as broker, http_user(broker) as user:
        assert await user.put("/queues/%2F/q", quorum) == 201
        assert (await user.ask("POST", publish, message("one"))).json == {"routed": True}

    run_inline, take_up = trio.Event(), QueueTask._take_up

    async def slow(self: QueueTask) -> None:
        if self.queue.name == "q":
            await run_inline.wait()
        await take_up(self)

    monkeypatch.setattr(QueueTask, "_take_up", slow)
    monkeypatch.setattr(broker_module, "QUEUES_WITHIN_S", 0)
    with trio.fail_after(90):
        async with Broker(config) as broker, http_user(broker) as user, http_user(broker) as other:
            answers: list[object] = []

            async def ask() -> None:
                answers.append((await user.ask("POST", publish, message("two"))).json)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                assert await other.put("/queues/%2F/new", quorum) == 201
                assert (await other.get("/queues/%2F/q"))["name"] == "q"
                await settle_down()
                assert answers == []
                run_inline.set()
            assert answers == [{"routed": True}]
            wanted = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
            got = await user.ask("POST", "/queues/%2F/q/get", wanted)
            assert [each["payload"] for each in got.json] == ["one", "two"]
