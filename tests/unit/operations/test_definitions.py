"""Export and import as operations; the document itself is the catalog's matter."""

from __future__ import annotations

import json

from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import Permission
from amqp10broker.operations.node import Caller
from tests.support.managing import Broker


def owner(broker: Broker) -> Caller:
    return broker.caller(None, passwords=Passwords(broker.catalog.users, lambda count: bytes(count)))


def test_what_is_exported_can_be_imported() -> None:
    """Into another broker, twice; it is JSON."""
    broker, other = Broker(), Broker()
    broker.do("add-user", caller=owner(broker), user="ann", password="secret", tags=["monitoring"])
    broker.do("declare-exchange", name="x", type="topic")
    broker.do("declare-queue", name="q", arguments={"x-queue-type": "quorum"})
    broker.do("bind", source="x", destination_queue="q", binding_key="a.#", arguments={"n": 1})
    document = json.loads(json.dumps(broker.do("export-definitions", caller=owner(broker))))
    assert "secret" not in json.dumps(document)
    for _ in range(2):
        report = other.do("import-definitions", caller=owner(other), document=document)
        assert (report["skipped"], report["unknown"]) == ([], [])
    assert other.do("list-queues") == broker.do("list-queues")
    assert other.do("list-bindings") == broker.do("list-bindings")
    assert [user["user"] for user in other.do("list-users")] == ["ann", "guest"]


def test_the_importing_user_may_use_the_virtual_hosts_that_a_document_adds() -> None:
    """As in RabbitMQ 4.3.6: what the document says of its permissions counts, and what was there stays."""
    broker = Broker()
    broker.do("add-vhost", name="there")
    document = {
        "vhosts": [{"name": "there"}, {"name": "new"}, {"name": "named"}],
        "permissions": [{"user": "guest", "vhost": "named", "configure": "", "write": "", "read": "x"}],
    }
    for _ in range(2):
        broker.do("import-definitions", document=document)
    broker.do("import-definitions", caller=owner(broker), document={"vhosts": [{"name": "of-nobody"}]})
    may = {vhost: permission for user, vhost, permission in broker.catalog.users.permissions()}
    assert may == {"/": Permission(), "new": Permission(), "named": Permission("", "", "x")}
