"""Definitions in RabbitMQ's shape: what cannot be is left out, and what is written comes back."""

from __future__ import annotations

import base64
import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.auth.passwords import Passwords
from amqp10broker.cluster.membership import ByCount
from amqp10broker.errors import ConfigError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import DeclareDue, due_of, importing, without_due
from amqp10broker.metadata.plan import CLUSTER, Put, UserLimits, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import ClusterFacts
from amqp10broker.metadata.queue_requests import DeleteQueue
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.metadata.vhost_requests import JoinNode, SetClusterName, SetParameter
from amqp10broker.raft.ids import node_of
from amqp10broker.routing.exchange import Binding, Destination
from tests.support import declaring
from tests.support.catalog_log import CheckedCatalog, FakeHost, logged_catalog, restarted

FILE = Path(__file__).with_name("rabbitmq-definitions.json")
GENERATED = "amq.gen-8sSDXjk3Gp0KrPzvT2mQ1A"
NEW = "queue 'orders.new' in vhost 'shop'"


@pytest.fixture
def document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return document


@pytest.mark.rabbitmq("definition_import_SUITE", "(permissions and topic permissions)")
@pytest.mark.rabbitmq("definition_import_SUITE", "(parameters and policies)")
def test_rabbitmqs_file_is_loaded(catalog: Catalog, document: dict[str, Any]) -> None:
    report = declaring.load(document, catalog)
    assert report.unknown == []
    assert report.loaded["queues"] == 6
    shop = catalog.vhosts["shop"]
    facts = shop.facts
    assert (facts.default_queue_type, facts.tags, facts.description) == (
        "quorum",
        ("production",),
        "Orders and stock",
    )
    assert shop.facts.metadata == {"protected_from_deletion": True}
    assert shop.facts.limits == VhostLimits(max_connections=500, max_queues=1000)
    assert catalog.vhosts["bare"].facts.default_queue_type is None
    assert shop.lookup("orders.new").type == "quorum"
    assert shop.lookup("orders.dead").arguments["x-overflow"] == "reject-publish"
    assert catalog.vhosts["/"].lookup("tasks").arguments == {"x-max-priority": 10, "x-queue-type": "classic"}
    assert catalog.users.lookup("orders-service").limits == UserLimits(max_connections=20, max_channels=200)
    assert catalog.users.lookup("legacy").tags == ("monitoring", "policymaker")
    assert catalog.users.lookup("CN=worker,O=Example").password is None
    assert catalog.users.granted.get(("legacy", "/")) == Permission("", "", ".*")
    assert ("orders-service", "shop", "orders.events") in catalog.users.granted_topics
    assert shop.policies.find("bounds", operator=True) is not None
    assert shop.policies.find("dead-letters") is not None
    assert catalog.global_parameters["cluster_tags"] == []
    assert ("shop", "shovel", "to-archive") in catalog.parameters


@pytest.mark.rabbitmq("definition_import_SUITE", "(queues, exchanges, bindings)")
def test_what_is_loaded_routes(catalog: Catalog, document: dict[str, Any]) -> None:
    declaring.load(document, catalog)
    shop = catalog.vhosts["shop"]
    events = shop.topology.lookup_exchange("orders.events")
    found, _ = shop.route(events, ["orders.7.created"], lambda: {"region": "eu", "priority": 1})
    assert {queue.name for queue in found} == {"orders.new", "archive"}


@pytest.mark.rabbitmq("definition_import_SUITE", "(users with hashes of every algorithm)")
def test_password_hashes_of_every_algorithm_are_kept(catalog: Catalog, document: dict[str, Any]) -> None:
    """A hash cannot be converted to another without the password."""
    declaring.load(document, catalog)
    algorithms = [user.password.algorithm for user in catalog.users if user.password]
    assert algorithms == [
        PasswordAlgorithm.RABBIT_SHA256,
        PasswordAlgorithm.RABBIT_SHA512,
        PasswordAlgorithm.RABBIT_MD5,
    ]


@pytest.mark.rabbitmq("definition_import_SUITE", "(names that the broker gives)")
def test_names_that_the_broker_gives_are_skipped_with_their_bindings(
    catalog: Catalog, document: dict[str, Any]
) -> None:
    """RabbitMQ does the same; the report says so."""
    report = declaring.load(document, catalog)
    assert catalog.vhosts["/"].find(GENERATED) is None
    assert report.skipped == [
        f"definitions: queues[5] ({GENERATED}): queue '{GENERATED}' has a name that only the broker gives",
        f"definitions: bindings[6] (amq.direct to {GENERATED}): no queue '{GENERATED}' in vhost '/'",
    ]


@pytest.mark.rabbitmq("definition_import_SUITE", "import_if_unchanged")
@pytest.mark.rabbitmq("vhost_SUITE", "vhost_creation_idempotency")
def test_loading_again_changes_nothing(catalog: Catalog, document: dict[str, Any], host: Any) -> None:
    """The version that drops remembered decisions stays as well."""
    declaring.load(document, catalog)
    before = declaring.export(catalog), catalog.users.version, len(host.started)
    declaring.load(document, catalog)
    assert (declaring.export(catalog), catalog.users.version, len(host.started)) == before


@pytest.mark.rabbitmq("definition_import_SUITE", "export_import_round_trip")
def test_what_is_exported_comes_back(catalog: Catalog, document: dict[str, Any], host: Any) -> None:
    """It goes through JSON into an empty broker and out again unchanged."""
    declaring.load(document, catalog)
    written = declaring.export(catalog)
    other = Catalog(host.start_queue)
    declaring.load(json.loads(json.dumps(written)), other)
    assert declaring.export(other) == written


def test_the_order_does_not_depend_on_that_in_which_things_were_declared() -> None:
    """So the document is the same at each node of a cluster."""
    documents = []
    for names in ("abc", "cba"):
        catalog = Catalog(FakeHost().start_queue)
        for name in names:
            declaring.declare(catalog, "/", name)
            declaring.declare_exchange(catalog, "/", f"x{name}", durable=True)
            declaring.put_policy(catalog, "/", Policy(name, name, {"max-length": 1}))
            for key in names:
                declaring.bind(catalog, "/", Binding("amq.direct", Destination("queue", name), key))
            for number in sorted(range(2), reverse=names == "abc"):
                declaring.bind(
                    catalog, "/", Binding("amq.headers", Destination("queue", name), "", {"n": number})
                )
            catalog.propose(SetParameter(("unknown", name), 1))
        documents.append(json.dumps(declaring.export(catalog)))
    assert documents[0] == documents[1]


def test_the_name_of_a_cluster_goes_out_and_comes_back() -> None:
    """A single node keeps it among its global parameters, as RabbitMQ does."""
    alone, cluster = Catalog(FakeHost().start_queue), Catalog(FakeHost().start_queue)
    alone.propose(SetClusterName("shop"))
    cluster.apply([Put(CLUSTER, ClusterFacts("id", "a"))])
    row = {"name": "cluster_name", "value": "shop"}
    assert row in declaring.export(alone)["global_parameters"]
    declaring.load(declaring.export(alone), cluster)
    assert cluster.cluster_name("alone") == "shop"
    assert row in declaring.export(cluster)["global_parameters"]


def test_what_cannot_come_back_is_not_exported(catalog: Catalog) -> None:
    vhost = catalog.vhosts["/"]
    declaring.declare(catalog, vhost, "mine", exclusive_owner=object())
    declaring.declare(catalog, vhost, "amq.gen-1", internal=True)
    for name in ("mine", "amq.gen-1"):
        declaring.bind(catalog, vhost, Binding("amq.fanout", Destination("queue", name), ""))
    written = declaring.export(catalog)
    assert written["queues"] == []
    assert written["bindings"] == []


@pytest.mark.parametrize("beside", [None, base64.b64encode(bytes(36)).decode()])
def test_an_export_holds_no_hash_that_rabbitmq_refuses(
    catalog: Catalog, host: Any, beside: str | None
) -> None:
    """argon2id is in a key that RabbitMQ ignores; users that have no hash for it are named."""
    record = PasswordRecord(PasswordAlgorithm.ARGON2ID, "$argon2id$x", rabbit_sha256=beside)
    declaring.add_user(catalog, "ann", record)
    written = json.loads(json.dumps(declaring.export(catalog)))
    (user,) = [each for each in written["users"] if each["name"] == "ann"]
    assert user["password_hash"] == (beside or "")
    assert user["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    named = written.get("explanation", "").startswith("RabbitMQ gives no password to ann: ")
    assert named == (beside is None)
    other = Catalog(host.start_queue)
    declaring.load(written, other)
    assert other.users.lookup("ann").password == record


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"argon2id": "x"}, "argon2id cannot be read; must be as argon2id writes it"),
        (
            {"argon2id": "$argon2id$x", "password_hash": "c2hvcnQ="},
            "password_hash cannot be read; must be as rab",
        ),
    ],
)
def test_hashes_of_an_export_that_cannot_be_are_refused(
    catalog: Catalog, changed: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        declaring.load({"users": [{"name": "a", **changed}]}, catalog)
    assert str(caught.value).startswith(f"definitions: users[0].{text}")


def test_a_password_in_plain_is_turned_into_a_record_once(catalog: Catalog) -> None:
    """The hash is slow to compute, and its salt is new each time."""
    made: list[str] = []

    def make(password: str) -> PasswordRecord:
        made.append(password)
        return PasswordRecord(PasswordAlgorithm.ARGON2ID, f"$argon2id${len(made)}")

    declaring.load({"users": [{"name": "a", "password": "p"}]}, catalog, make_password=make)
    assert made == ["p"]
    assert catalog.users.lookup("a").password == PasswordRecord(PasswordAlgorithm.ARGON2ID, "$argon2id$1")


@pytest.mark.rabbitmq("definition_import_SUITE", "(a file of one virtual host)")
def test_a_file_of_one_virtual_host_names_none(catalog: Catalog) -> None:
    declaring.add_vhost(catalog, "v")
    declaring.load({"queues": [{"name": "q", "durable": True}]}, catalog, vhost="v")
    assert catalog.vhosts["v"].find("q") is not None
    with pytest.raises(ConfigError, match=r"^definitions: queues\[0\].vhost is missing; must be a string$"):
        declaring.load({"queues": [{"name": "q"}]}, catalog)


GONE = object()


def changed_at(place: str, value: object, document: dict[str, Any]) -> dict[str, Any]:
    *way, last = [int(step) if step.isdecimal() else step for step in re.findall(r"[\w-]+", place)]
    where: Any = document
    for step in way:
        where = where[step]
    if value is GONE:
        del where[last]
    elif isinstance(where, list) and last == len(where):
        where.append(value)
    else:
        where[last] = value
    return document


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("queues[3].durable", "yes", 'queues[3].durable is "yes"; must be true or false'),
        ("queues[0].name", GONE, "queues[0].name is missing; must be a string"),
        ("queues[0].arguments", ["x"], 'queues[0].arguments is ["x"]; must be an object: {...}'),
        ("queues", {}, "queues is {}; must be a list: [...]"),
        ("queues[0]", 7, "queues[0] is 7; must be an object: {...}"),
        ("exchanges[0].internal", 0, "exchanges[0].internal is 0; must be true or false"),
        (
            "bindings[0].destination_type",
            "t",
            'bindings[0].destination_type is "t"; must be "queue" or "exch',
        ),
        (
            "users[0].password_hash",
            "c2hvcnQ=",
            "users[0].password_hash cannot be read; must be as rabbit_pas",
        ),
        (
            "users[0].hashing_algorithm",
            "x",
            'users[0].hashing_algorithm is "x"; must be one of argon2id, rab',
        ),
        ("users[0].password_hash", GONE, "users[0].password_hash is missing; must be given, or password"),
        (
            "users[4]",
            {"name": "p", "password": "x"},
            "users[4].password cannot be used; must not be empty; or",
        ),
        ("users[0].tags", [1], "users[0].tags is [1]; must be a list of strings, or one string with commas"),
        ("users[0].limits", {"n": 1}, "users[0] is refused: user 'guest': there is no limit 'n'"),
        ("users[0].scram_sha_256", "1:2", "users[0].scram_sha_256 cannot be read; must be iterations:salt"),
        ("permissions[0].user", "nobody", "permissions[0] is refused: no user 'nobody'"),
        ("permissions[0].read", "(", "permissions[0] is refused: read permission: '(' is not a regular expr"),
        ("topic_permissions[0].exchange", GONE, "topic_permissions[0].exchange is missing; must be a string"),
        ("policies[0].priority", "high", 'policies[0].priority is "high"; must be an integer'),
        ("parameters[0].value.max-queues", "9", "parameters[0] is refused: vhost 'shop': limit 'max-queues'"),
        ("parameters[1].value.pattern", GONE, "parameters[1].value.pattern is missing; must be a string"),
        ("global_parameters[0].value", GONE, "global_parameters[0].value is missing; must be given"),
    ],
)
def test_a_fault_names_its_place_and_nothing_is_changed(
    catalog: Catalog, document: dict[str, Any], host: Any, place: str, value: object, text: str
) -> None:
    """Earlier parts of the file are not applied either."""
    before = copy.deepcopy(declaring.export(catalog)), catalog.users.version
    with pytest.raises(ConfigError) as caught:
        declaring.load(changed_at(place, value, document), catalog)
    assert str(caught.value).startswith(f"definitions: {text}")
    assert (declaring.export(catalog), catalog.users.version) == before
    assert host.started == []


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("bindings[0].destination", "gone", "(orders.events to gone): no queue 'gone' in vhost 'shop'"),
        ("exchanges[0].type", "x-delayed", "(orders.events): unknown exchange type 'x-delayed'"),
        ("policies[0].apply-to", "x", "(dead-letters): policy 'dead-letters': apply-to is 'x'"),
        ("queues[0].vhost", "nowhere", "(orders.new): vhost nowhere not found"),
        (
            "queues[0].arguments.x-max-length",
            -1,
            f"(orders.new): invalid arg 'x-max-length' for {NEW}: must be 0 or more, not -1",
        ),
        (
            "queues[0].arguments.x-queue-type",
            "jms",
            f"(orders.new): invalid arg 'x-queue-type' for {NEW}: must be one of ",
        ),
    ],
)
def test_what_is_refused_is_left_out_and_named(
    catalog: Catalog, document: dict[str, Any], place: str, value: object, reason: str
) -> None:
    """Bindings that need it are left out too; all else is declared."""
    section = place.partition("[")[0]
    before = len(document[section])
    report = declaring.load(changed_at(place, value, document), catalog)
    assert any(each.startswith(f"definitions: {section}[0] {reason}") for each in report.skipped), report
    assert report.loaded[section] < before
    assert catalog.users.by_name.get("legacy") is not None
    written = declaring.export(catalog)
    for name in ("exchanges", "queues", "bindings", "policies"):
        left_out = sum(each.startswith(f"definitions: {name}[") for each in report.skipped)
        assert len(written[name]) == len(document[name]) - left_out, name


@pytest.mark.rabbitmq("definition_import_SUITE", "(what differs from what is there)")
def test_what_is_there_and_differs_stays_as_it_is(catalog: Catalog, document: dict[str, Any]) -> None:
    """A queue is never changed while clients use it; the report names it."""
    declaring.declare(catalog, catalog.vhosts["/"], "tasks")
    report = declaring.load(document, catalog)
    assert report.skipped[0].startswith("definitions: queues[3] (tasks): inequivalent arg 'x-max-pri")
    assert "x-max-priority" not in catalog.vhosts["/"].lookup("tasks").arguments
    assert catalog.vhosts["shop"].find("orders.new") is not None


@pytest.mark.rabbitmq("definition_import_SUITE", "(limits of users and virtual hosts)")
def test_queues_beyond_a_limit_of_the_file_are_left_out(catalog: Catalog, document: dict[str, Any]) -> None:
    document["parameters"][0]["value"]["max-queues"] = 2
    report = declaring.load(document, catalog)
    assert "queue limit in vhost 'shop' (2)" in report.skipped[0]
    assert len(catalog.vhosts["shop"].queues) == 2


@pytest.mark.rabbitmq("definition_import_SUITE", "(a document that is none)")
def test_a_document_must_be_an_object(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match=r"^definitions: is \[\]; must be an object"):
        declaring.load([], catalog)


def test_a_hash_without_algorithm_is_known_by_its_length(catalog: Catalog) -> None:
    """Files of RabbitMQ before 3.6 hold MD5 without a name; later ones without a name mean SHA-256."""
    old = base64.b64encode(b"salt" + bytes(16)).decode()
    new = base64.b64encode(b"salt" + bytes(32)).decode()
    users = [
        {"name": "old", "password_hash": old, "tags": ""},
        {"name": "new", "password_hash": new, "tags": []},
    ]
    declaring.load({"users": users}, catalog)
    found = {name: catalog.users.lookup(name).password for name in ("old", "new")}
    assert {name: record and record.algorithm for name, record in found.items()} == {
        "old": PasswordAlgorithm.RABBIT_MD5,
        "new": PasswordAlgorithm.RABBIT_SHA256,
    }


def test_a_file_of_rabbitmq_4_is_loaded_but_for_bindings_of_internal_exchanges(catalog: Catalog) -> None:
    """4.3.6 exports such a file: see tests/integration/test_way_back.py."""
    exported = json.loads(FILE.with_name("exported-by-rabbitmq-4.3.6.json").read_text(encoding="utf-8"))
    report = declaring.load(exported, catalog)
    (left_out,) = report.skipped
    assert left_out.endswith("(inner to quorum): no exchange 'inner' in vhost 'way-back'")
    assert report.loaded == {
        name: len(entries) - (name == "bindings")
        for name, entries in exported.items()
        if isinstance(entries, list)
    }
    passwords = Passwords(catalog.users, lambda size: bytes(size))
    assert passwords.slow("way-back-ann", b"ann's password")()
    written = declaring.export(catalog)
    for section in ("permissions", "topic_permissions", "policies", "parameters", "queues"):
        assert [each for each in exported[section] if each not in written[section]] == [], section


def test_a_file_that_a_rabbitmq_wrote_is_loaded(catalog: Catalog) -> None:
    """`rabbitmqctl export_definitions` of 3.10.8 wrote it, with Erlang's lists of pairs."""
    exported = json.loads(FILE.with_name("exported-by-rabbitmq-3.10.8.json").read_text(encoding="utf-8"))
    report = declaring.load(exported, catalog)
    assert (report.skipped, report.unknown) == ([], [])
    assert (report.loaded["queues"], report.loaded["exchanges"], report.loaded["bindings"]) == (6, 6, 6)
    shop = catalog.vhosts["shop"]
    assert shop.facts.limits == VhostLimits(max_queues=50)
    assert catalog.users.lookup("ann").limits == UserLimits(max_connections=5)
    passwords = Passwords(catalog.users, lambda size: bytes(size))
    assert passwords.slow("ann", b"ann's password")()
    assert not passwords.slow("ann", b"another")()
    exchange = shop.topology.lookup_exchange("shop.events")
    queues, _ = shop.route(exchange, ("order.1.new",), dict)
    assert [queue.name for queue in queues] == ["shop.orders"]


DOCUMENT: dict[str, Any] = {
    "exchanges": [{"name": "x", "vhost": "/", "type": "direct"}],
    "queues": [{"name": "q", "vhost": "/", "type": "quorum"}],
    "bindings": [
        {"source": "x", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    ],
}


def founded() -> tuple[Catalog, dict[Any, Any]]:
    catalog, kept = logged_catalog(CheckedCatalog)
    facts = Put(CLUSTER, ClusterFacts("id", "name", queues_due=True))
    catalog.apply([facts])
    catalog.changes.keep([facts])
    catalog.propose(JoinNode("a", "host", 1))
    catalog.placement = ByCount(1, 1, lambda count: 0, runs=lambda node: True)
    catalog.propose(without_due(importing(DOCUMENT)))
    return catalog, kept


def test_a_queue_gets_the_members_that_it_would_not_have_had_at_the_beginning() -> None:
    catalog, _ = founded()
    for name in ("b", "c"):
        catalog.propose(JoinNode(name, "host", 1))
    report = catalog.propose(DeclareDue(due_of(DOCUMENT, [])))
    assert report.loaded["queues"] == report.loaded["bindings"] == 1
    queue = catalog.vhosts["/"].lookup("q")
    assert sorted(map(node_of, queue.members)) == [1, 2, 3]
    assert len(list(catalog.vhosts["/"].topology.bindings())) == 1


def test_it_is_declared_once() -> None:
    """Objects deleted since do not come back, not even after a restart of the node."""
    catalog, kept = founded()
    catalog.propose(SetClusterName("shop"))
    assert restarted(kept, CheckedCatalog).cluster == ClusterFacts("id", "shop", queues_due=True)
    catalog.propose(DeclareDue(due_of(DOCUMENT, [])))
    catalog.propose(DeleteQueue("/", "q"))
    again = restarted(kept, CheckedCatalog)
    assert again.cluster == ClusterFacts("id", "shop")
    for each in (catalog, again):
        assert each.propose(DeclareDue(due_of(DOCUMENT, []))).loaded == {}
        assert list(each) == []


def test_what_clashes_with_what_a_client_has_declared_is_left_out() -> None:
    catalog, _ = founded()
    declaring.declare(catalog, "/", "other")
    further = [{"name": "other", "vhost": "/", "type": "quorum"}]
    report = catalog.propose(DeclareDue(due_of(DOCUMENT, further)))
    assert [each.partition(":")[2].partition(":")[0] for each in report.skipped] == [" queues[1] (other)"]
    assert not catalog.cluster.queues_due
    assert sorted(queue.name for queue in catalog) == ["other", "q"]
    with pytest.raises(ConfigError, match="queues is {}; must be a list"):
        due_of({"queues": {}}, further).plan(catalog)
