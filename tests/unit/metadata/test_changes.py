"""What changes the catalog, what is kept of it, and what it costs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from decimal import Decimal

import pytest

from amqp10broker.errors import ConfigError, InvalidArgument, LimitExceeded, NotFound
from amqp10broker.metadata.catalog import NUMBERS_RESERVED, Catalog, restore
from amqp10broker.metadata.entry_codec import exact, unwrapped
from amqp10broker.metadata.plan import NUMBERS, Key, Put, UserLimits, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import Owner, QueueSpec
from amqp10broker.metadata.queue_requests import (
    Bind,
    ConnectionEnded,
    DeclareQueue,
    DeleteQueue,
    QueueEnded,
    Unbind,
)
from amqp10broker.metadata.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    ScramRecord,
    TopicPermission,
)
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.metadata.vhost_requests import DeleteVhost, SetParameter
from amqp10broker.queues.commands import DELETE
from amqp10broker.routing.exchange import Binding, Destination, canonical
from tests.support.catalog_log import FakeCatalogLog, FakeHost, check_log, logged_catalog, restarted
from tests.support.declaring import (
    add_user,
    add_vhost,
    bind,
    change_vhost,
    clear_permission,
    clear_topic_permission,
    declare,
    declare_exchange,
    delete_exchange,
    delete_policy,
    delete_user,
    delete_vhost,
    export,
    load,
    put_policy,
    put_user,
    remove,
    set_password,
    set_permission,
    set_tags,
    set_topic_permission,
    set_user_limits,
    unbind,
)
from tests.support.queue_handles import FakeHandle
from tests.support.steps import steps_of

RECORD = PasswordRecord(
    PasswordAlgorithm.ARGON2ID, "$argon2id$x", ScramRecord(b"salt", 4096, b"stored", b"server")
)


ODD = {"n": Decimal("1.50"), "list": [1, b"\xff", {"!bytes": 1}]}
"""Arguments that JSON has no words for."""


def queue(name: str) -> Destination:
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


def furnished() -> tuple[Catalog, FakeCatalogLog]:
    catalog, kept = logged_catalog()
    shop = add_vhost(
        catalog,
        "shop",
        description="a shop",
        tags=["b", "a"],
        default_queue_type="quorum",
        limits=VhostLimits(max_queues=9),
        metadata={"owner": "ann", "deep": {"x": [1, None]}},
    )
    add_user(catalog, "ann", RECORD, tags=["administrator", "x"], limits=UserLimits(max_channels=3))
    add_user(catalog, "bob", None)
    for user in ("ann", "bob"):
        set_permission(catalog, user, "shop", Permission("^a", "", ".*"))
        set_topic_permission(catalog, user, "shop", "amq.topic", TopicPermission("^a", "b$"))
    catalog.propose(SetParameter(("parameter", "shop", "shovel", "s"), {"src": 1}))
    catalog.propose(SetParameter(("global_parameter", "cluster_name"), "rabbit"))
    catalog.propose(SetParameter(("unknown", "later"), [1, 2]))
    put_policy(catalog, shop, Policy("p", "^q", {"max-length": 5}, 3, "queues"))
    put_policy(catalog, shop, Policy("p", "^q", {"expires": 5}, operator=True))
    for name, arguments in (("events", {"alternate-exchange": "rest"}), ("rest", {})):
        declare_exchange(catalog, shop, name, "topic", arguments=arguments)
    declare_exchange(catalog, shop, "one-use", "headers", auto_delete=True, internal=True)
    declare(catalog, shop, "orders", arguments={"x-max-length": 5, "note": b"\xff"})
    declare(catalog, shop, "short", auto_delete=True)
    bind(catalog, shop, Binding("events", queue("orders"), "a.#"))
    bind(catalog, shop, Binding("events", exchange("rest"), "b", {"n": 1, "raw": b"\xfe"}))
    bind(catalog, shop, Binding("one-use", queue("orders"), "", {"x-match": "all", "n": 1.5}))
    bind(catalog, shop, Binding("amq.fanout", queue("short")))
    return catalog, kept


def shop_of(catalog: Catalog) -> VirtualHost:
    return catalog.lookup_vhost("shop")


CHANGES: dict[str, Callable[[Catalog], object]] = {
    "add_vhost": lambda catalog: add_vhost(catalog, "v", description="d", tags=["t"]),
    "delete_vhost": lambda catalog: delete_vhost(catalog, "shop"),
    "delete the default virtual host": lambda catalog: delete_vhost(catalog, "/"),
    "set_default_queue_type": lambda catalog: change_vhost(catalog, "shop", default_queue_type="classic"),
    "unset the default queue type": lambda catalog: change_vhost(catalog, "shop", default_queue_type=None),
    "describe": lambda catalog: change_vhost(
        catalog, "shop", description="other", tags=("c",), metadata={"k": 1}
    ),
    "set_limits": lambda catalog: change_vhost(catalog, "shop", limits=VhostLimits(max_connections=0)),
    "lift limits": lambda catalog: change_vhost(catalog, "shop", limits=VhostLimits()),
    "add a user": lambda catalog: add_user(catalog, "eve", RECORD, tags=["t"]),
    "put a user": lambda catalog: put_user(catalog, catalog.users.lookup("ann")),
    "set_password": lambda catalog: set_password(catalog, "bob", RECORD),
    "no password any more": lambda catalog: set_password(catalog, "ann", None),
    "set_tags": lambda catalog: set_tags(catalog, "ann", ["management"]),
    "set a user's limits": lambda catalog: set_user_limits(catalog, "bob", UserLimits(max_connections=1)),
    "delete a user": lambda catalog: delete_user(catalog, "ann"),
    "set_permission": lambda catalog: set_permission(catalog, "bob", "/", Permission("a", "b", "c")),
    "change a permission": lambda catalog: set_permission(catalog, "bob", "shop", Permission()),
    "clear_permission": lambda catalog: clear_permission(catalog, "bob", "shop"),
    "set_topic_permission": lambda catalog: set_topic_permission(catalog,
        "bob", "/", "x", TopicPermission("a", "b")
    ),
    "clear_topic_permission": lambda catalog: clear_topic_permission(catalog,
        "bob", "shop", "amq.topic"
    ),
    "clear all topic permissions": lambda catalog: clear_topic_permission(catalog, "bob", "shop"),
    "set_parameter": lambda catalog: catalog.propose(SetParameter(("parameter", "/", "shovel", "f"), None)),
    "set_global_parameter": lambda catalog: catalog.propose(
        SetParameter(("global_parameter", "g"), {"a": [True]})
    ),
    "keep_unknown": lambda catalog: catalog.propose(SetParameter(("unknown", "even later"), {})),
    "put a policy": lambda catalog: put_policy(catalog, "shop", Policy("r", "x", {"max-length": 1})),
    "replace a policy": lambda catalog: put_policy(catalog, "shop", Policy("p", "x", {"max-length": 1})),
    "delete a policy": lambda catalog: delete_policy(catalog, "shop", "p"),
    "delete an operator policy": lambda catalog: delete_policy(catalog, "shop", "p", operator=True),
    "declare_exchange": lambda catalog: declare_exchange(catalog, shop_of(catalog),
        "new", "x-consistent-hash", arguments={"hash-header": "h"}
    ),
    "declare a transient exchange": lambda catalog: declare_exchange(catalog, shop_of(catalog),
        "new", durable=False
    ),
    "delete_exchange": lambda catalog: delete_exchange(catalog, "shop", "events"),
    "delete a destination": lambda catalog: delete_exchange(catalog, "shop", "rest"),
    "bind": lambda catalog: bind(catalog, shop_of(catalog),
        Binding("amq.topic", queue("orders"), "k", ODD)
    ),
    "bind again": lambda catalog: bind(catalog, "shop", Binding("events", queue("orders"), "a.#")),
    "unbind": lambda catalog: unbind(catalog, "shop", Binding("events", queue("orders"), "a.#")),
    "unbind the last of an auto-delete exchange": lambda catalog: unbind(catalog, shop_of(catalog),
        Binding("one-use", queue("orders"), "", {"x-match": "all", "n": 1.5})
    ),
    "declare a queue": lambda catalog: declare(catalog, "/",
        "q", arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}
    ),
    "declare again": lambda catalog: declare(catalog, "shop", "short", auto_delete=True),
    "declare a transient queue": lambda catalog: declare(catalog, "shop", "t", durable=False),
    "declare an exclusive queue": lambda catalog: declare(catalog, "shop", "e", exclusive_owner=object()),
    "declare a queue with a name of ours": lambda catalog: declare(catalog, shop_of(catalog),
        "amq.gen-1", internal=True
    ),
    "add_volatile": lambda catalog: shop_of(catalog).add_volatile("amq.rabbitmq.reply-to.1", 1, FakeHandle()),
    "remove a queue": lambda catalog: remove(catalog, "shop", "orders"),
    "remove no queue": lambda catalog: remove(catalog, "shop", "nothing"),
    "load definitions": lambda catalog: load(
        {
            "users": [{"name": "new", "password_hash": "", "tags": "a,b", "limits": {"max-channels": 1}}],
            "vhosts": [{"name": "shop", "metadata": {"k": 2}}, {"name": "w", "tags": ["a"]}],
            "permissions": [{"user": "new", "vhost": "w", "configure": "", "write": "", "read": ""}],
            "topic_permissions": [
                {"user": "new", "vhost": "w", "exchange": "x", "write": "", "read": ""}
            ],
            "exchanges": [{"name": "x", "vhost": "w", "type": "fanout"}],
            "queues": [{"name": "q", "vhost": "w"}, {"name": "t", "vhost": "w", "durable": False}],
            "bindings": [
                {"source": "x", "vhost": "w", "destination": each, "destination_type": "queue"}
                for each in ("q", "t")
            ],
            "policies": [{"vhost": "w", "name": "p", "pattern": "q", "definition": {"expires": 1}}],
            "parameters": [
                {"vhost": "w", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 5}},
                {"vhost": "w", "component": "shovel", "name": "s", "value": 1},
                {
                    "vhost": "w",
                    "component": "operator_policy",
                    "name": "p",
                    "value": {"pattern": "q", "definition": {"expires": 1}},
                },
            ],
            "global_parameters": [{"name": "n", "value": 1}],
            "unheard_of": 5,
        },
        catalog,
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_is_told_and_survives_a_restart(change: Callable[[Catalog], object]) -> None:
    """The sum of the reported changes is the catalog; a catalog made of them exports the same."""
    catalog, kept = furnished()
    check_log(catalog, kept)
    change(catalog)
    check_log(catalog, kept)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_works_after_a_restart_too(change: Callable[[Catalog], object]) -> None:
    """A restored object can be changed and deleted like a declared one, and that is reported."""
    _, kept = furnished()
    catalog = restarted(kept)
    change(catalog)
    check_log(catalog, kept)


def test_what_is_not_durable_is_not_told() -> None:
    """These are transient and exclusive queues and exchanges, and bindings with such an end."""
    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    kept.calls.clear()
    declare(catalog, vhost, "t", durable=False)
    declare(catalog, vhost, "e", exclusive_owner=object())
    declare_exchange(catalog, vhost, "x", durable=False)
    bind(catalog, vhost, Binding("amq.topic", queue("t"), "k"))
    bind(catalog, vhost, Binding("amq.topic", exchange("x"), "k"))
    bind(catalog, vhost, Binding("x", exchange("amq.topic"), "k"))
    assert kept.calls == []
    declare(catalog, vhost, "d")
    kept.calls.clear()
    bind(catalog, vhost, Binding("x", queue("d"), "k"))
    assert kept.calls == []


# --- numbers --------------------------------------------------------------------------------------


def test_a_durable_queue_has_a_number_that_is_given_once() -> None:
    """Declared again it is another queue, also after a restart without any rest of the old one."""
    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    assert declare(catalog, vhost, "a")[0].number == 1
    assert declare(catalog, vhost, "t", durable=False)[0].number == 0
    assert declare(catalog, add_vhost(catalog, "v"), "a")[0].number == 2
    remove(catalog, vhost, "a")
    delete_vhost(catalog, "v")
    catalog = restarted(kept)
    again, _ = declare(catalog, "/", "a")
    assert again.number > 2
    assert restarted(kept).lookup_vhost("/").lookup("a").number == again.number


def test_a_stream_has_an_id_of_its_own() -> None:
    """This holds in memory too; a definitions file omits the id, since it declares another stream."""
    catalog, kept = furnished()
    vhost = catalog.lookup_vhost("/")
    stream = {"x-queue-type": "stream"}
    first = declare(catalog, vhost, "s", durable=True, arguments=stream)[0].declaration_id
    assert first != ""
    assert declare(catalog, vhost, "s", durable=True, arguments=stream)[0].declaration_id == first
    check_log(catalog, kept)
    assert restarted(kept).lookup_vhost("/").lookup("s").declaration_id == first
    remove(catalog, vhost, "s")
    assert declare(catalog, vhost, "s", durable=True, arguments=stream)[0].declaration_id not in ("", first)
    assert declare(catalog, vhost, "q2", durable=True)[0].declaration_id == ""
    assert all("declaration_id" not in entry for entry in export(catalog)["queues"])


def test_numbers_are_reserved_before_they_are_given() -> None:
    """Many are reserved at once. After a crash these are passed over, as they may be in use."""
    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    kept.calls.clear()
    for number in range(1, NUMBERS_RESERVED + 1):
        assert declare(catalog, vhost, str(number))[0].number == number
    assert [keys for _, keys in kept.calls].count([NUMBERS]) == 1
    assert kept.calls[0] == ("put", [NUMBERS])
    crashed = restarted(kept)
    assert declare(crashed, "/", "q")[0].number == NUMBERS_RESERVED + 1
    assert restarted(kept).highest_number == 2 * NUMBERS_RESERVED


def test_an_orderly_end_gives_numbers_back() -> None:
    catalog, kept = logged_catalog()
    declare(catalog, "/", "q")
    catalog.changes.give_numbers_back(catalog.highest_number)
    check_log(catalog, kept)
    assert declare(restarted(kept), "/", "r")[0].number == 2


def test_numbers_that_are_in_use_elsewhere_are_passed_over() -> None:
    """Records in the journal whose queue's declaration was lost have such numbers."""
    catalog, kept = logged_catalog()
    catalog.apply([Put(NUMBERS, 7), Put(NUMBERS, 3)])
    assert declare(catalog, "/", "q")[0].number == 8
    assert restarted(kept).highest_number >= 8


# --- all at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    ["delete_exchange", "delete a destination", "unbind the last of an auto-delete exchange",
     "clear all topic permissions", "delete a user", "delete_vhost", "remove a queue"],
)  # fmt: skip
def test_each_deletion_is_told_at_once(change: str) -> None:
    """After a crash, all objects that the deletion includes exist, or none."""
    catalog, kept = furnished()
    set_topic_permission(catalog, "bob", "shop", "x", TopicPermission("a", "b"))
    kept.calls.clear()
    CHANGES[change](catalog)
    assert len(kept.calls) == 1
    assert len(kept.calls[0][1]) > 1


def test_what_goes_late_from_a_deleted_virtual_host_takes_nothing_from_the_next_of_its_name() -> None:
    """Its queues end, and an old reference is used, after it is gone."""
    catalog, kept = furnished()
    queue = catalog.lookup_vhost("shop").lookup("orders")
    old = delete_vhost(catalog, "shop")
    new = add_vhost(catalog, "shop")
    declare(catalog, new, "orders")
    catalog.propose(QueueEnded("shop", "orders", queue.handle))
    with pytest.raises(NotFound, match="vhost shop not found"):
        old.named()
    check_log(catalog, kept)
    assert ("queue", "shop", "orders") in kept.by_key


# --- when it cannot be kept ------------------------------------------------------------------------

ADDING = [
    *("add_vhost", "set_default_queue_type", "describe", "set_limits", "add a user", "set_password"),
    *("set_tags", "set_permission", "change a permission", "set_topic_permission", "set_parameter"),
    *("set_global_parameter", "keep_unknown", "put a policy", "replace a policy", "declare_exchange"),
    *("bind", "declare a queue"),
]  # fmt: skip


@pytest.mark.parametrize("name", ADDING)
def test_what_cannot_be_kept_is_refused_and_does_not_happen(name: str) -> None:
    """Otherwise a client would take its queue for durable when it is not."""
    catalog, kept = furnished()
    before = dict(kept.by_key)
    kept.full = True
    with pytest.raises(LimitExceeded, match="the disk is full"):
        CHANGES[name](catalog)
    kept.full = False
    assert kept.by_key == before
    check_log(catalog, kept)


def test_a_queue_that_cannot_be_run_is_not_kept() -> None:
    """Its entry is written before it is started."""

    class Broken:
        def start_queue(self, queue: QueueSpec) -> FakeHandle:
            raise OSError("no more files")

    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    vhost._start_queue = Broken().start_queue
    with pytest.raises(OSError, match="no more files"):
        declare(catalog, vhost, "q")
    assert ("queue", "/", "q") not in kept.by_key
    assert vhost.find("q") is None


def test_a_fault_of_one_queue_of_a_definitions_file_takes_back_what_was_not_begun() -> None:
    """Objects from before, or already begun, stay: the disk has what is declared."""

    class Breaking(FakeHost):
        def start_queue(self, queue: QueueSpec) -> FakeHandle:
            if queue.name == "b":
                raise OSError("no more files")
            return super().start_queue(queue)

    catalog, kept = furnished()
    shop_of(catalog)._start_queue = Breaking().start_queue
    names = {"vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}
    ends = {"vhost": "shop", "source": "events", "destination_type": "queue", "arguments": {}}
    document = {
        "users": [{"name": "ann", "password_hash": "", "tags": "monitoring"}],
        "vhosts": [{"name": "shop", "description": "other"}],
        "queues": [{"name": name, **names} for name in "abc"],
        "bindings": [{"destination": name, "routing_key": name, **ends} for name in ("orders", "b")],
    }
    with pytest.raises(OSError, match="no more files"):
        load(document, catalog)
    check_log(catalog, kept)
    assert [name for name in "abc" if ("queue", "shop", name) in kept.by_key] == ["a"]
    assert catalog.users.lookup("ann").tags == ("monitoring",)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**63), 1.5, float("inf"), "", "é\ud800", b"", b"\xff\x00",
        Decimal("1.50"), uuid.UUID(int=5), [], [1, [b"x"]], {}, {"a": {"b": b"\xff"}},
        {"!bytes": "AA=="}, {"!x": 1, "y": 2}, {"!table": {"!": None}}, {"a": {"!float": "1"}},
    ],
    ids=repr,
)  # fmt: skip
def test_arguments_come_back_as_they_were(value: object) -> None:
    """This includes types that JSON lacks, and a client's table that resembles one of ours."""
    import json

    assert canonical(unwrapped(json.loads(json.dumps(exact(value))))) == canonical(value)


def test_bindings_are_the_same_exactly_if_they_count_as_the_same() -> None:
    """The front end does not matter: text or bytes, one zero or the other."""
    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    declare(catalog, vhost, "q")
    for arguments in ({"n": 1}, {"n": 1.0}, {"n": True}, {"n": "1"}, {"n": -0.0}, {"n": Decimal("1.0")}):
        assert bind(catalog, vhost, Binding("amq.headers", queue("q"), "", arguments))
    assert len([key for key in kept.by_key if key[0] == "binding"]) == 6
    for arguments in ({"n": b"1"}, {"n": 0.0}, {"n": Decimal("1.00")}):
        assert unbind(catalog, vhost, Binding("amq.headers", queue("q"), "", arguments))
    assert len([key for key in kept.by_key if key[0] == "binding"]) == 3
    check_log(catalog, kept)


# --- restoring ------------------------------------------------------------------------------------


def test_what_is_restored_is_not_measured_by_limits_of_today() -> None:
    """A limit that was set later applies to new objects, not to existing ones."""
    catalog, kept = logged_catalog()
    vhost = catalog.lookup_vhost("/")
    declare(catalog, vhost, "a")
    declare(catalog, vhost, "b")
    change_vhost(catalog, vhost, limits=VhostLimits(max_queues=1))
    catalog = restarted(kept)
    again = catalog.lookup_vhost("/")
    assert {each.name for each in again} == {"a", "b"}
    with pytest.raises(LimitExceeded):
        declare(catalog, again, "c")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (("shovel", "s"), {}, "data folder: shovel 's' cannot be restored: this version has no entries"),
        (("queue", "/", "q"), {"name": "q"},
         "data folder: queue '/' 'q' cannot be restored: KeyError: 'type'"),
        (("queue", "/", "q"),
         {"name": "q", "vhost": "/", "type": "odd", "durable": True, "auto_delete": False,
          "arguments": {"x-queue-type": "odd"}, "number": 1},
         "data folder: queue '/' 'q' cannot be restored: .*must be one of .* not 'odd'"),
        (("vhost", "v"),
         {"name": "v", "description": "", "tags": [], "limits": {}, "metadata": {},
          "default_queue_type": "odd"},
         "data folder: vhost 'v' cannot be restored: .*must be one of .* not 'odd'"),
        (("exchange", "/", "x"),
         {"name": "x", "vhost": "/", "type": "x-odd", "durable": True, "auto_delete": False,
          "internal": False, "arguments": {}},
         "data folder: exchange '/' 'x' cannot be restored: .*x-odd.* with all packages that it had"),
        (("permission", "ann", "/"), {"user": "ann", "vhost": "/", "configure": "", "write": "", "read": ""},
         "cannot be restored: no user 'ann'"),
        (("user", "ann"), {"name": "ann", "password_hash": "odd", "tags": [], "limits": {}},
         "password_hash cannot be read"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_understood_stops_the_start(
    key: Key, value: dict[str, object], problem: str
) -> None:
    """Dependent objects would be lost; the text names the entry and the remedy."""
    with pytest.raises(ConfigError, match=problem):
        restore(Catalog(), [(("vhost", "/"), VHOST_ENTRY), (key, value)])


VHOST_ENTRY = {"name": "/", "description": "", "tags": [], "limits": {}, "metadata": {}}


def test_a_default_type_must_be_one_that_is_served(catalog: Catalog) -> None:
    """The error comes when it is set, not at the first declare; nothing is added."""
    with pytest.raises(InvalidArgument):
        add_vhost(catalog, "v", default_queue_type="x")
    assert "v" not in catalog.vhosts


@pytest.mark.rabbitmq("vhost_SUITE", "vhost_deletion")
def test_a_deleted_virtual_host_takes_its_permissions_and_parameters_along(catalog: Catalog) -> None:
    vhost = add_vhost(catalog, "v")
    queue, _ = declare(catalog, vhost, "q")
    add_user(catalog, "a", None)
    set_permission(catalog, "a", "v", Permission())
    set_permission(catalog, "a", "/", Permission())
    set_topic_permission(catalog, "a", "v", "x", TopicPermission())
    catalog.parameters["v", "shovel", "s"] = {}
    gone = delete_vhost(catalog, "v")
    assert gone is vhost
    assert queue.handle.commands == [DELETE]  # type: ignore[attr-defined]
    assert list(gone) == list(gone.topology.bindings()) == []
    assert gone.deleted
    assert [row[1] for row in catalog.users.permissions()] == ["/"]
    assert list(catalog.users.topic_permissions()) == []
    assert catalog.parameters == {}


MINE, NOBODYS = Owner(1, 1, 1), Owner(1, 1, 2)


def with_number(number: int) -> Binding:
    return Binding("by-header", queue("all"), "", {"n": number})


def furnished_big(count: int) -> Catalog:
    catalog = Catalog(FakeHost().start_queue)
    add_vhost(catalog, "v")
    declare_exchange(catalog, "v", "by-header", "headers")
    declare_exchange(catalog, "v", "going", "fanout", auto_delete=True)
    declare(catalog, "v", "all")
    declare(catalog, "v", "mine", exclusive_owner=MINE)
    for number in range(100, 100 + count):
        name = f"q{number}"
        declare(catalog, "v", name)
        bind(catalog, "v", Binding("amq.topic", queue(name), f"k.{number}"))
        bind(catalog, "v", Binding("going", queue(name), ""))
        bind(catalog, "v", with_number(number))
    return catalog


REQUESTS = {
    "declare": lambda last: DeclareQueue("v", "new"),
    "declare again": lambda last: DeclareQueue("v", f"q{last}"),
    "bind": lambda last: Bind("v", Binding("amq.topic", queue(f"q{last}"), "new")),
    "bind with arguments": lambda last: Bind("v", with_number(last + 1)),
    "unbind": lambda last: Unbind("v", Binding("amq.topic", queue(f"q{last}"), f"k.{last}")),
    "unbind with arguments": lambda last: Unbind("v", with_number(last)),
    "delete a queue": lambda last: DeleteQueue("v", f"q{last}"),
    "a connection without queues ends": lambda last: ConnectionEnded("v", NOBODYS),
    "a connection ends": lambda last: ConnectionEnded("v", MINE),
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())
def test_one_change_costs_the_same_however_much_there_is(make: Callable[[int], object]) -> None:
    def steps(count: int) -> int:
        catalog = furnished_big(count)
        request = make(99 + count)
        return steps_of(lambda: catalog.propose(request))  # type: ignore[arg-type]  # of any answer

    assert steps(400) <= steps(20) * 1.2


@pytest.mark.parametrize("request_", [DeleteVhost("v"), DeleteQueue("v", "all")], ids=["vhost", "queue"])
def test_what_takes_much_along_costs_as_much_as_there_is(request_: DeleteVhost | DeleteQueue) -> None:
    """Four times as many cost four times as much, in whatever order the bindings are removed."""

    def steps(count: int) -> int:
        catalog = furnished_big(count)
        return steps_of(lambda: catalog.propose(request_))

    assert steps(400) < steps(100) * 5


def test_a_definitions_file_is_planned_without_the_bindings_that_are_there() -> None:
    """A small file must not block a large broker."""
    document = {
        "bindings": [
            {"vhost": "v", "source": "by-header", "destination": "all", "destination_type": "queue",
             "routing_key": "", "arguments": {"n": 100}},
        ]
    }  # fmt: skip

    def steps(count: int) -> int:
        catalog = furnished_big(1)
        for number in range(101, 101 + count):
            bind(catalog, "v", with_number(number))
        before = catalog.lookup_vhost("v").version
        found = steps_of(lambda: load(document, catalog))
        assert catalog.lookup_vhost("v").version == before
        return found

    steps(0)  # Records are compiled at their first use, which does not count.
    assert steps(400) <= steps(0) * 1.2
