"""Members of quorum queues, rebalancing and the old checks over HTTP, against a running broker."""

from __future__ import annotations

import pytest

from amqp10broker.runtime.admin import admin
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http import http_api
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import add_vhost, declare
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.trioclient import running_broker, settle_down

QUORUM = {"x-queue-type": "quorum"}


async def test_how_the_members_of_a_quorum_queue_stand(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q", arguments=QUORUM)
    declare(broker.catalog, "/", "classic")
    (row,) = await user.get("/queues/quorum/%2F/q/status")
    assert set(row) == {
        *("Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied"),
        *("Commit Index", "Snapshot Index", "Term", "Machine Version"),
    }
    assert row["Node Name"] == "broker"
    heard = await user.ask("GET", "/queues/quorum/%2F/classic/status")
    assert heard.status == 503
    assert heard.json["reason"].startswith("classic_queue_not_supported")
    assert (await user.ask("GET", "/queues/quorum/%2F/none/status")).status == 404


async def test_members_come_and_go(broker: Broker, user: HttpUser) -> None:
    """A single node has one member, which stays; the cluster tests cover several members."""
    declare(broker.catalog, "/", "q", arguments=QUORUM)
    declare(broker.catalog, "/", "classic")
    add, delete = (f"/queues/quorum/%2F/q/replicas/{what}" for what in ("add", "delete"))
    assert (await user.ask("POST", add, {"node": "broker"})).status == 204
    for method, path, body, reason in (
        ("POST", add, {"node": "elsewhere"}, "Node is not a cluster member"),
        ("DELETE", delete, {"node": "elsewhere"}, "Node is not a cluster member"),
        ("POST", add, {}, "[{key_missing,node}]"),
        ("DELETE", delete, {"node": "broker"}, "last_node: "),
        ("POST", "/queues/quorum/%2F/classic/replicas/add", {"node": "broker"}, "classic_queue_not"),
    ):
        heard = await user.ask(method, path, body)
        assert (heard.status, heard.json["reason"][: len(reason)]) == (400, reason)
    grow, shrink = (f"/queues/quorum/replicas/on/broker/{what}" for what in ("grow", "shrink"))
    given = {"strategy": "even", "vhost_pattern": ".*", "queue_pattern": "q"}
    assert (await user.ask("POST", grow, given)).status == 204
    assert (await user.ask("POST", grow, {"strategy": "odd"})).status == 400
    assert await user.delete(shrink) == 202
    assert await user.delete("/queues/quorum/replicas/on/elsewhere/shrink") == 404
    assert (await user.ask("POST", "/queues/quorum/replicas/on/elsewhere/grow", given)).status == 404


async def test_leaders_are_rebalanced_behind_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogRecorder()
    for module in (admin, http_api):
        monkeypatch.setattr(module, "_log", log)
    async with running_broker() as broker, http_user(broker) as user:
        assert (await user.ask("POST", "/rebalance/queues")).status == 204
        await settle_down()
        ((event, told),) = log.of("info")
        assert (event, told["operation"], told["by"]) == ("operation", "rebalance", "user 'guest' over HTTP")
        broker.as_member.rebalancing = True
        assert (await user.ask("POST", "/rebalance/queues")).status == 204
        await settle_down()
        events = [event for event, _ in log.of("warning")]
        assert events == ["operation refused", "what HTTP began was not done"]
        add_login(broker, "ann:pw", "management")
        async with http_user(broker, "ann:pw") as ann:
            assert (await ann.ask("POST", "/rebalance/queues")).status == 401


async def test_the_old_checks_say_that_the_api_answers(broker: Broker, user: HttpUser) -> None:
    for path in ("/aliveness-test/%2F", "/healthchecks/node", "/healthchecks/node/broker"):
        assert await user.get(path) == {"status": "ok"}
    assert (await user.ask("GET", "/healthchecks/node/elsewhere")).status == 404
    assert (await user.ask("GET", "/aliveness-test/nowhere")).status == 404
    add_vhost(broker.catalog, "v")
    heard = await user.ask("GET", "/aliveness-test/v")
    assert (heard.status, heard.json) == (401, {"error": "not_authorised", "reason": "Access refused."})
