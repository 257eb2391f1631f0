"""Each operation through each front end, with each of its permissions missing.

A front end says of every operation how it is asked for there, or that it is not offered: a new one fails here
until that is decided. What differs between front ends by intention is in docs/adr/0040.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pytest

from amqp10broker.errors import NotFound, NotSupported, PermissionDenied
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.users import Permission, TopicPermission
from amqp10broker.operations.node import Wait
from amqp10broker.operations.registry import OPERATIONS
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.queues.commands import Answer, Refusal
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.admin import admin
from tests.support import declaring
from tests.support.channel_harness import ChannelEnds, Harness
from tests.support.managing import Broker, arguments_of
from tests.support.scenario import Scenario
from tests.support.trioclient import running_broker

USER: Final = "u"


@dataclass(frozen=True)
class Need:
    """An operation with arguments, what is just enough for it, and what is said without each.

    Attributes:
        given: arguments.
        enough: patterns by permission; ``topic`` is the one for reading routing keys at a topic exchange.
        missing: permissions to leave out, and which access is refused then.
    """

    given: Mapping[str, Any]
    enough: Mapping[str, str]
    missing: tuple[tuple[str, str], ...]


BIND: Final = {"source": "x", "destination_queue": "a", "binding_key": "k"}
BIND_EXCHANGE: Final = {"source": "x", "destination_exchange": "y", "binding_key": "k"}


def need(given: Mapping[str, Any], *accesses: str) -> Need:
    """Return the least permissions and the error without each, for accesses like ``write exchange y``."""
    enough: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    for permission, kind, name in map(str.split, accesses):
        enough[permission] = f"^{re.escape(name)}$"
        text = (
            "read access to topic 'k' in exchange 'x'"
            if kind == "topic"
            else f"{permission} access to {kind} '{name}'"
        )
        missing.append((permission, text))
    return Need(given, enough, tuple(missing))


def _any_of(kind: str, name: str) -> tuple[Need, ...]:
    """Any one permission allows looking an object up; there is one need for each."""
    lacks = f"configure access to {kind} '{name}'"
    permissions = ("configure", "write", "read")
    return tuple(Need({"name": name}, {each: f"^{name}$"}, ((each, lacks),)) for each in permissions)


BINDING: Final = ("read exchange x", "topic topic k")
DEAD_LETTERED: Final = {"x-dead-letter-exchange": "y"}
ALTERNATE: Final = {"alternate-exchange": "y"}
SEGMENT: Final = {"segment": "src=x;dstq=a;key=k;args="}

NEEDS: Final[Mapping[str, tuple[Need, ...]]] = {
    "get-queue": _any_of("queue", "a"),
    "declare-queue": (
        need({"name": "new"}, "configure queue new"),
        need({"name": "a"}, "configure queue a"),
        need(
            {"name": "new", "arguments": DEAD_LETTERED},
            *("configure queue new", "read queue new", "write exchange y"),
        ),
        # One that is there has its dead-letter exchange already.
        need({"name": "dead", "arguments": DEAD_LETTERED}, "configure queue dead"),
    ),
    "delete-queue": (need({"name": "a"}, "configure queue a"), need({"name": "no"}, "configure queue no")),
    "purge-queue": (need({"name": "a"}, "read queue a"),),
    "get-exchange": _any_of("exchange", "x"),
    "declare-exchange": (
        need({"name": "new"}, "configure exchange new"),
        need(
            {"name": "new", "arguments": ALTERNATE},
            *("configure exchange new", "read exchange new", "write exchange y"),
        ),
        need({"name": "alt", "arguments": ALTERNATE}, "configure exchange alt"),
    ),
    "delete-exchange": (need({"name": "x"}, "configure exchange x"),),
    "bind": (need(BIND, "write queue a", *BINDING), need(BIND_EXCHANGE, "write exchange y", *BINDING)),
    "unbind": (need(BIND, "write queue a", *BINDING), need(BIND_EXCHANGE, "write exchange y", *BINDING)),
    "unbind-by-segment": (need(SEGMENT, "write queue a", *BINDING),),
    "get-bindings": (need(BIND, "write queue a", "read exchange x"),),
}
"""Operations on what is in a virtual host."""

LISTS: Final = frozenset({"list-queues", "list-exchanges", "list-bindings", "list-vhosts"})
"""Nothing is refused: what the user has nothing to do with is left out."""
ADMINISTRATIVE: Final = frozenset(
    name for name, operation in OPERATIONS.items() if operation.permission == "the tag administrator"
)


def test_it_is_decided_of_each_operation_what_it_needs() -> None:
    """A new operation must be listed here."""
    assert sorted([*NEEDS, *LISTS, *ADMINISTRATIVE]) == sorted(OPERATIONS)


def furnish(catalog: Catalog) -> None:
    """Declare the objects of the operations, and a user without permissions."""
    for name, arguments in (("a", {}), ("dead", {"x-dead-letter-exchange": "y"})):
        declaring.declare(catalog, "/", name, arguments=arguments)
    declaring.declare_exchange(catalog, "/", "x", "topic")
    declaring.declare_exchange(catalog, "/", "y", "direct")
    declaring.declare_exchange(catalog, "/", "alt", "direct", arguments={"alternate-exchange": "y"})
    declaring.bind(catalog, "/", Binding("x", Destination("queue", "a"), "k", {}))
    declaring.add_user(catalog, USER, None)
    declaring.set_permission(catalog, USER, "/", Permission("", "", ""))


def allow(catalog: Catalog, patterns: Mapping[str, str]) -> None:
    configure, write, read, topic = (
        patterns.get(each, "") for each in ("configure", "write", "read", "topic")
    )
    declaring.set_permission(catalog, USER, "/", Permission(configure, write, read))
    declaring.set_topic_permission(catalog, USER, "/", "x", TopicPermission("", topic))


# --- front ends -----------------------------------------------------------------------------------


class BrokerApi(Protocol):
    """A way to ask for operations.

    Attributes:
        name: for people.
        offers: operations that can be asked for there.
        needs: of those, what they need there where it is otherwise than in `NEEDS`.
    """

    name: str
    offers: frozenset[str]
    needs: Mapping[str, tuple[Need, ...]]

    def ask(self, operation: str, given: Mapping[str, Any], allowed: Mapping[str, str]) -> str | None:
        """Ask as a user with these permissions; which access is refused, None if none."""


@dataclass
class Table:
    """Whoever calls `Caller.perform`: what a further front end has by itself."""

    name: str = "table"
    offers: frozenset[str] = frozenset(OPERATIONS)
    needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)

    def ask(self, operation: str, given: Mapping[str, Any], allowed: Mapping[str, str]) -> str | None:
        broker = Broker()
        furnish(broker.catalog)
        allow(broker.catalog, allowed)
        return _told(lambda: broker.do(operation, caller=broker.caller(USER), **given))


REQUESTS: Final[Mapping[str, Callable[[dict[str, Any]], tuple[str, str, Any]]]] = {
    "get-queue": lambda given: ("GET", f"/queues/{given['name']}", None),
    "declare-queue": lambda given: ("PUT", f"/queues/{given.pop('name')}", given),
    "delete-queue": lambda given: ("DELETE", f"/queues/{given['name']}", None),
    "purge-queue": lambda given: ("DELETE", f"/queues/{given['name']}/messages", None),
    "declare-exchange": lambda given: ("PUT", f"/exchanges/{given.pop('name')}", given),
    "delete-exchange": lambda given: ("DELETE", f"/exchanges/{given['name']}", None),
    "bind": lambda given: ("POST", "/bindings", given),
    "unbind-by-segment": lambda given: ("DELETE", f"/bindings/{given['segment']}", None),
    "get-bindings": lambda given: ("GET", f"/bindings?src={given['source']}&dstq=a&key=k", None),
}


@dataclass
class Management10:
    """HTTP over AMQP 1.0: a missing permission is raised, for it ends the session."""

    name: str = "management node of AMQP 1.0"
    offers: frozenset[str] = frozenset(REQUESTS)
    needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)

    def ask(self, operation: str, given: Mapping[str, Any], allowed: Mapping[str, str]) -> str | None:
        broker = Broker()
        furnish(broker.catalog)
        allow(broker.catalog, allowed)

        def request() -> None:
            status, body = broker.request(*REQUESTS[operation](dict(given)), user=USER)
            assert status.startswith("2"), body

        return _told(request)


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"durable": True, "arguments": given.get("arguments", {})}


def _binding_methods(given: Mapping[str, Any], queue: Any, exchange: Any) -> methods.Method:
    source, key = given["source"], given["binding_key"]
    if "destination_queue" in given:
        return queue(given["destination_queue"], source, key)  # type: ignore[no-any-return]
    return exchange(given["destination_exchange"], source, key)  # type: ignore[no-any-return]


METHODS: Final[Mapping[str, Callable[[Mapping[str, Any]], methods.Method]]] = {
    "get-queue": lambda given: methods.QueueDeclare(given["name"], passive=True),
    "declare-queue": lambda given: methods.QueueDeclare(given["name"], **_flags(given)),
    "delete-queue": lambda given: methods.QueueDelete(given["name"]),
    "purge-queue": lambda given: methods.QueuePurge(given["name"]),
    "get-exchange": lambda given: methods.ExchangeDeclare(given["name"], passive=True),
    "declare-exchange": lambda given: methods.ExchangeDeclare(given["name"], "direct", **_flags(given)),
    "delete-exchange": lambda given: methods.ExchangeDelete(given["name"]),
    "bind": lambda given: _binding_methods(given, methods.QueueBind, methods.ExchangeBind),
    "unbind": lambda given: _binding_methods(given, methods.QueueUnbind, methods.ExchangeUnbind),
}


@dataclass
class Methods091:
    """AMQP 0-9-1: 403, and the channel is closed."""

    name: str = "methods of AMQP 0-9-1"
    offers: frozenset[str] = frozenset(METHODS)
    needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)

    def ask(self, operation: str, given: Mapping[str, Any], allowed: Mapping[str, str]) -> str | None:
        world = Harness()
        furnish(world.catalog)
        allow(world.catalog, allowed)
        channel = world.channel(user=USER)
        got = channel.call(METHODS[operation](given))
        if got.NAME != "channel.close":
            assert got.NAME.endswith("-ok")
            return None
        assert got.reply_code == 403
        return _access(got.reply_text.removeprefix("ACCESS_REFUSED - "))


@dataclass
class Attach:
    """Attaching by a bare name makes the queue, and then the link needs what it always needs."""

    end: str
    needs: Mapping[str, tuple[Need, ...]]
    name: str = "attach"
    offers: frozenset[str] = frozenset({"declare-queue"})

    def ask(self, operation: str, given: Mapping[str, Any], allowed: Mapping[str, str]) -> str | None:
        scene = Scenario("q")
        scene.allow(**allowed)
        (line, *_) = scene.do(f"C> ATTACH h=0 {self.end}={given['name']}")
        if line.startswith("B> ATTACH"):
            return None
        assert line.startswith("B> END error=amqp:unauthorized-access")
        return _access(line.split('"')[1])


def _attaching(link: str) -> Mapping[str, tuple[Need, ...]]:
    return {"declare-queue": (need({"name": "new"}, "configure queue new", link),)}


FRONT_ENDS: Final[tuple[BrokerApi, ...]] = (
    Table(),
    Management10(),
    Methods091(),
    Attach("source", _attaching("read queue new"), "attach of a receiver"),
    Attach("target", _attaching("write exchange amq.default"), "attach of a sender"),
)

NOT_OFFERED: Final[Mapping[str, frozenset[str]]] = {
    # unbind is unbind-by-segment there; what there is in the whole is asked of the other front ends.
    "management node of AMQP 1.0": frozenset({"unbind", "get-exchange", *LISTS, *ADMINISTRATIVE}),
    # The protocol has no methods for it.
    "methods of AMQP 0-9-1": frozenset({"unbind-by-segment", "get-bindings", *LISTS, *ADMINISTRATIVE}),
    **dict.fromkeys(
        ("attach of a receiver", "attach of a sender"), frozenset(OPERATIONS) - {"declare-queue"}
    ),
}


def _told(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except PermissionDenied as refusal:
        return _access(refusal.description)
    return None


def _access(text: str) -> str:
    return text.partition(" in vhost ")[0]


@pytest.mark.parametrize("broker_api", FRONT_ENDS, ids=lambda broker_api: broker_api.name)
def test_it_is_decided_of_each_operation_whether_a_front_end_offers_it(broker_api: BrokerApi) -> None:
    """A new operation must be offered or listed as left out."""
    not_offered = NOT_OFFERED.get(broker_api.name, frozenset())
    assert not broker_api.offers & not_offered
    assert broker_api.offers | not_offered == set(OPERATIONS)


CASES: Final = [
    pytest.param(broker_api, name, need, missing, id=f"{broker_api.name}-{name}-{number}-{missing or 'none'}")
    for broker_api in FRONT_ENDS
    for name, needs in {**NEEDS, **broker_api.needs}.items()
    if name in broker_api.offers
    for number, need in enumerate(needs)
    for missing in (None, *(each for each, _ in need.missing))
]


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "declare_exchange",
    "declare_queue",
    "delete_exchange",
    "delete_queue",
    "purge_queue",
    "get_queue",
    "declare_queue_dlx_exchange",
    "declare_queue_dlx_queue",
    "declare_exchange_alternate_exchange_allowed",
    "declare_exchange_alternate_exchange_read",
    "declare_exchange_alternate_exchange_write",
    "bind_queue_destination",
    "bind_queue_source",
    "unbind_queue_source",
    "unbind_queue_target",
    "bind_exchange_destination",
    "bind_exchange_source",
    "bind_to_topic_exchange",
    "unbind_from_topic_exchange",
    "list_bindings_allowed",
    "list_bindings_destination_write",
    "list_bindings_source_read",
)
@pytest.mark.rabbitmq(
    "unit_amqp_management_SUITE",
    "prop_read_then_write",
    "source_read_denied_skips_target_write",
    "target_write_denied",
    "absent_argument_skips_checks",
    "wrapper_uses_matching_argument_key",
    "both_permissions_granted",
    "get_bindings_both_permissions_granted",
    "get_bindings_destination_write_checked_first",
    "get_bindings_destination_write_denied",
    "get_bindings_source_read_denied",
)
@pytest.mark.parametrize(("broker_api", "operation", "need", "missing"), CASES)
def test_a_missing_permission_is_refused_at_every_front_end(
    broker_api: BrokerApi, operation: str, need: Need, missing: str | None
) -> None:
    allowed = {each: pattern for each, pattern in need.enough.items() if each != missing}
    assert broker_api.ask(operation, need.given, allowed) == dict(need.missing).get(missing or "")


@pytest.mark.parametrize(
    ("broker_api", "name"),
    [
        pytest.param(broker_api, name, id=f"{broker_api.name}-{name}")
        for broker_api in FRONT_ENDS
        for name in sorted(broker_api.offers & ADMINISTRATIVE)
    ],
)
def test_what_is_for_administrators_needs_the_tag(broker_api: BrokerApi, name: str) -> None:
    """Permissions in a virtual host do not make an administrator."""
    everything = dict.fromkeys(("configure", "write", "read", "topic"), ".*")
    refused = f"{name} refused for user '{USER}': it needs the tag 'administrator'"
    assert broker_api.ask(name, arguments_of(name), everything) == refused


@pytest.mark.parametrize("name", sorted(LISTS))
def test_a_list_leaves_out_what_the_user_has_nothing_to_do_with(name: str) -> None:
    broker = Broker()
    furnish(broker.catalog)
    assert broker.do(name, caller=broker.caller(USER)) == [] or name == "list-vhosts"
    assert broker.do(name) != []


@pytest.mark.parametrize("name", OPERATIONS)
async def test_the_machines_owner_needs_no_permission(autojump_clock: object, name: str) -> None:
    """The admin socket offers every operation and refuses none."""
    given = arguments_of(name)
    if name == "record-start":
        given["folder"] = "/dev/null/no"  # nothing is to be recorded here
    async with running_broker() as broker:
        response = await admin.answer(broker, json.dumps({"op": name, "arguments": given}).encode())
        assert response.get("kind") not in ("PermissionDenied", "AccessRefused")
        assert "not a request" not in response.get("error", "")


# --- definitions ----------------------------------------------------------------------------------

DECLARED: Final = {
    "declare-queue": {"queues": [{"name": "q", "vhost": "/"}]},
    "declare-exchange": {"exchanges": [{"name": "e", "vhost": "/", "type": "direct"}]},
    "bind": {"bindings": [{"source": "x", "vhost": "/", "destination": "a", "destination_type": "queue",
                           "routing_key": "n"}]},
    "add-user": {"users": [{"name": "n", "password_hash": ""}]},
    "add-vhost": {"vhosts": [{"name": "v"}]},
    "set-permissions": {"permissions": [
        {"user": USER, "vhost": "/", "configure": "", "write": "", "read": ""}]},
    "set-topic-permissions": {"topic_permissions": [
        {"user": USER, "vhost": "/", "exchange": "x", "write": "", "read": ""}]},
    "set-policy": {"policies": [{"name": "p", "vhost": "/", "pattern": "", "definition": {"max-length": 1}}]},
}  # fmt: skip
"""What a definitions file declares, and the operation that does it by itself."""


@pytest.mark.parametrize("operation", DECLARED)
def test_a_definitions_file_is_for_administrators_whatever_it_declares(operation: str) -> None:
    """Single permissions are not checked: an import may declare everything."""
    broker = Broker()
    furnish(broker.catalog)
    allow(broker.catalog, dict.fromkeys(("configure", "write", "read", "topic"), ".*"))
    with pytest.raises(PermissionDenied, match="import-definitions refused for user 'u'"):
        broker.do("import-definitions", caller=broker.caller(USER), document=DECLARED[operation])
    broker.do("import-definitions", document=DECLARED[operation])


# --- rules that had drifted apart -----------------------------------------------------------------


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    furnish(broker.catalog)
    return broker


@pytest.fixture
def channel() -> ChannelEnds:
    world = Harness()
    furnish(world.catalog)
    return world.channel(user=USER)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize("flag", ["if_unused", "if_empty"])
def test_a_queue_that_cannot_be_deleted_on_a_condition_is_not(broker: Broker, kind: str, flag: str) -> None:
    """RabbitMQ's HTTP API and channels refuse this for a quorum queue in the same words."""
    broker.do("declare-queue", name="r", arguments={"x-queue-type": kind})
    with pytest.raises(NotSupported) as raised:
        broker.do("delete-queue", name="r", **{flag: True})
    condition = flag.replace("_", "-")
    assert raised.value.description == (
        f"cannot delete queue 'r' in vhost '/'. queue.delete operations with {condition} flag set are not "
        f"supported by {kind} queues"
    )
    assert broker.vhost.find("r") is not None


def test_a_queue_that_ends_while_it_is_declared_again_is_not_found(broker: Broker) -> None:
    """It is not reported as an empty queue."""
    declaration = broker.caller().perform(OPERATIONS["declare-queue"], {"name": "a"})
    wait = next(declaration)
    assert isinstance(wait, Wait)
    with pytest.raises(NotFound, match="no queue 'a' in vhost '/'"):
        declaration.send(Answer(wait.ref, 0, 0, Refusal.GONE))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (methods.ExchangeDeclare(""), "operation not permitted on the default exchange"),
        (methods.ExchangeDelete(""), "operation not permitted on the default exchange"),
        (
            methods.ExchangeDelete("amq.topic"),
            "deletion of system exchange 'amq.topic' in vhost '/' not allowed",
        ),
    ],
)
def test_what_nobody_may_is_told_before_any_permission(
    channel: ChannelEnds, method: methods.Method, text: str
) -> None:
    """This is the order in RabbitMQ's AMQP 0-9-1 and in the management node."""
    assert channel.refused(method) == (403, text)


def test_who_has_a_queue_for_itself_is_told_only_to_who_may_bind_it(channel: ChannelEnds) -> None:
    """In AMQP 0-9-1, permissions on both ends are checked first, as in RabbitMQ."""
    catalog = channel.world.catalog
    declaring.declare(catalog, "/", "mine", exclusive_owner="another", durable=False)
    allow(catalog, {"write": "^mine$"})
    _, text = channel.refused(methods.QueueBind("mine", "x", "k"))
    assert text.startswith("read access to exchange 'x'")
    allow(catalog, {"write": "^mine$", "read": "^x$", "topic": "^k$"})
    channel = channel.world.channel(user=USER)
    assert channel.refused(methods.QueueBind("mine", "x", "k"))[0] == 405


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueBind("a\r\n", "x\n", "k"),
        methods.QueueUnbind("a\n", "\rx", "k"),
        methods.QueuePurge("\na"),
        methods.QueueDelete("a\n"),
        methods.ExchangeBind("y\n", "x\n", "k"),
        methods.ExchangeUnbind("y\n", "x\n", "k"),
        methods.ExchangeDelete("x\r\n"),
        methods.QueueDeclare("a\n", passive=True),
        methods.ExchangeDeclare("x\n", passive=True),
    ],
    ids=lambda method: f"{method.NAME}{'-passive' if getattr(method, 'passive', False) else ''}",
)
def test_line_ends_are_dropped_from_names_in_all_methods(
    channel: ChannelEnds, method: methods.Method
) -> None:
    """Otherwise, in AMQP 0-9-1, a name could not be used as it was given in its declaration."""
    allow(channel.world.catalog, dict.fromkeys(("configure", "write", "read", "topic"), "^[axyk]$"))
    assert f"{method.NAME}-ok" == channel.call(method).NAME


def test_a_deleted_queue_is_not_there_any_more_for_what_comes_behind(channel: ChannelEnds) -> None:
    """A declaration behind the request makes another queue, as over management (AMQP 0-9-1)."""
    allow(channel.world.catalog, {"configure": "^a$"})
    channel.world.box("a").stalled = True
    channel.send(methods.QueueDelete("a"))
    channel.world.rest()
    assert channel.world.vhost.find("a") is None
