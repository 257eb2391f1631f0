"""Permissions of links: which one each attach and each message needs, and with which words it is missing."""

from __future__ import annotations

import re

import pytest

from amqp10broker.protocols.amqp10.performatives import decode_composite
from amqp10broker.queues.commands import DeliveryOutcome, Subscribe, Unsubscribe
from tests.support.declaring import declare
from tests.support.managing import request_message
from tests.support.reply_addresses import new_reply_to
from tests.support.scenario import ACCEPTED, RELEASED, Scenario, content, detached, disposition, ended

UNAUTHORIZED = "amqp:unauthorized-access"
LOCKED = (
    "cannot obtain exclusive access to locked queue 'q1' in vhost '/'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)


@pytest.fixture
def scene() -> Scenario:
    """Return a scenario with two queues and two exchanges, in which guest may do everything."""
    scene = Scenario("q1", "q2")
    scene.exchange("x")
    scene.bind("x", "q1", "k")
    scene.exchange("t", "topic")
    scene.bind("t", "q1", "#")
    return scene


def refused(what: str) -> str:
    return ended(UNAUTHORIZED, f"{what} in vhost '/' refused for user 'guest'")


# --- attach --------------------------------------------------------------------------------------


class Row:
    """An attach, the permissions that are just enough for it, and what is said without each.

    `accesses`: as ``write exchange x``.
    """

    def __init__(self, attach: str, *accesses: str) -> None:
        self.attach = attach
        needed = [each.split() for each in accesses]
        self.enough = {permission: f"^{re.escape(name)}$" for permission, _, name in needed}
        self.missing = [(each, f"{each} access to {kind} '{name}'") for each, kind, name in needed]


DYNAMIC = "queue amq.dyn-client-C-link-0-id1"
DEFAULT = "write exchange amq.default"
ROWS = {
    "source queue": Row("source=/queues/q1", "read queue q1"),
    "source queue, with a selector": Row(
        "source=/queues/q1 filter=apache.org:selector-filter:string", "read queue q1"
    ),
    "source queue, to browse": Row("source=/queues/q1 distribution-mode=copy", "read queue q1"),
    "target exchange": Row("target=/exchanges/x/k", "write exchange x"),
    "target topic exchange": Row("target=/exchanges/t/k", "write exchange t"),
    "target queue": Row("target=/queues/q1", DEFAULT),
    "dynamic source": Row(
        "source=dynamic capabilities=temporary-queue", f"configure {DYNAMIC}", f"read {DYNAMIC}"
    ),
    "dynamic target": Row("target=dynamic capabilities=temporary-queue", f"configure {DYNAMIC}", DEFAULT),
    "bare name as source": Row("source=fresh", "configure queue fresh", "read queue fresh"),
    "bare name as target": Row("target=fresh", "configure queue fresh", DEFAULT),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_attach_needs_no_more_than_its_permissions(scene: Scenario, name: str) -> None:
    """With exactly these, the attach is answered (amqp_auth_SUITE attach_*)."""
    row = ROWS[name]
    scene.allow(**row.enough)
    attach = scene.do(f"C> ATTACH h=0 {row.attach}")[0]
    assert attach.startswith("B> ATTACH name=link-0 h=0 ")
    assert not attach.endswith("=null")


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "attach_source_queue",
    "attach_source_queue_dynamic_exclusive",
    "attach_target_exchange",
    "attach_target_queue",
    "attach_target_queue_dynamic_exchange_write",
    "attach_target_queue_dynamic_queue_configure",
)
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "access_failure_send")
@pytest.mark.parametrize(
    ("name", "permission", "what"),
    [(name, permission, what) for name, row in ROWS.items() for permission, what in row.missing],
)
def test_an_attach_without_one_of_its_permissions_ends_the_session(
    scene: Scenario, name: str, permission: str, what: str
) -> None:
    """The session, not the link, ends with amqp:unauthorized-access, and no queue is declared."""
    row = ROWS[name]
    before = set(scene.world.vhost.queues)
    scene.allow(**{kind: pattern for kind, pattern in row.enough.items() if kind != permission})
    assert scene.do(f"C> ATTACH h=0 {row.attach}") == [refused(what)]
    assert set(scene.world.vhost.queues) == before


@pytest.mark.parametrize("address", ["source=/queues/gone", "target=/exchanges/gone/k"])
def test_who_may_not_learns_not_what_exists(scene: Scenario, address: str) -> None:
    """The permission is checked before the name is looked up."""
    scene.allow()
    (line,) = scene.do(f"C> ATTACH h=0 {address}")
    assert line.startswith("B> END error=amqp:unauthorized-access")


def test_the_anonymous_terminus_needs_nothing_itself(scene: Scenario) -> None:
    scene.allow()
    assert scene.sender(None)[0].startswith("B> ATTACH ")


def test_the_end_of_one_session_is_none_of_the_others(scene: Scenario) -> None:
    """The ended session's links requeue their deliveries, and the other sessions go on."""
    scene.do("C> BEGIN ch=1", "C> ATTACH ch=1 h=0 target=/queues/q2", "publish q1 2")
    scene.receiver("/queues/q1")
    scene.do("C> FLOW h=9 dc=0 cr=5")
    assert scene.counts("q1") == [0]
    scene.allow(write=r"^amq\.default$")
    assert scene.receiver("/queues/q2", 1) == [refused("read access to queue 'q2'")]
    assert scene.counts("q1") == [2]
    assert scene.do("C> TRANSFER ch=1 h=0") == [
        "B> DISPOSITION ch=1 role=receiver first=0 settled=true state=accepted"
    ]
    assert scene.do("C> TRANSFER h=0") == [], "nothing is heard on an ended session"


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_auth_SUITE", "target_per_message_exchange")
@pytest.mark.parametrize("settled", ["true", "false"])
@pytest.mark.parametrize(
    ("to", "enough", "what"),
    [
        ("/exchanges/x/k", "^x$", "write access to exchange 'x'"),
        ("/queues/q1", r"^amq\.default$", "write access to exchange 'amq.default'"),
        ("/exchanges/t/k", "^t$", "write access to exchange 't'"),
    ],
)
def test_a_message_through_the_anonymous_terminus(
    scene: Scenario, to: str, enough: str, what: str, settled: str
) -> None:
    scene.sender(None)
    scene.allow(write=enough)
    assert scene.publish(content(to=to)) == [disposition(0, ACCEPTED)]
    scene.allow(write="^other$")
    assert scene.publish(content(to=to), settled=settled) == [refused(what)]
    assert scene.counts("q1") == [1]


@pytest.mark.parametrize(
    ("missing", "what"),
    [("configure", "configure access to queue 'fresh'"), ("write", "write access to exchange 'amq.default'")],
)
def test_a_message_that_would_declare_a_queue_needs_what_an_attach_needs(
    scene: Scenario, missing: str, what: str
) -> None:
    """It needs both permissions; without one of them, no queue is left behind."""
    enough = ROWS["bare name as target"].enough
    scene.sender(None)
    scene.allow(**{kind: pattern for kind, pattern in enough.items() if kind != missing})
    assert scene.publish(content(to="fresh")) == [refused(what)]
    assert scene.world.vhost.find("fresh") is None
    scene.do("C> BEGIN ch=1", "C> ATTACH ch=1 h=0 target=anonymous")
    scene.allow(**enough)
    assert "state=accepted" in scene.do("C> TRANSFER ch=1 h=0 to=fresh")[0]


@pytest.mark.rabbitmq("amqp_auth_SUITE", "target_per_message_internal_exchange")
def test_an_internal_exchange_through_the_anonymous_terminus(scene: Scenario) -> None:
    scene.exchange("inside", "fanout", internal=True)
    scene.sender(None)
    text = "forbidden to publish to internal exchange 'inside' in vhost '/'"
    assert scene.publish(content(to="/exchanges/inside")) == [ended(UNAUTHORIZED, text)]


def test_what_was_sent_before_the_refused_message_is_published(scene: Scenario) -> None:
    scene.allow(write="^x$")
    scene.sender(None)
    good, bad = content("good", to="/exchanges/x/k").hex(), content("bad", to="/queues/q1").hex()
    lines = scene.do(
        f"C> TRANSFER h=0 payload={good} ; TRANSFER h=0 payload={bad} ; TRANSFER h=0 payload={good}"
    )
    assert lines[-1] == refused("write access to exchange 'amq.default'")
    assert scene.counts("q1") == [1]


# --- topics --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_auth_SUITE", "attach_target_topic_exchange", "target_per_message_topic")
@pytest.mark.parametrize(
    ("target", "to"), [("/exchanges/t/bad.k", None), (None, "/exchanges/t/bad.k")], ids=["fixed", "anonymous"]
)
def test_a_topic_permission_is_looked_at_for_each_key(
    scene: Scenario, target: str | None, to: str | None
) -> None:
    """The attach succeeds, because the routing key belongs to the message, not to the exchange."""
    scene.allow_topics("t", "^good")
    assert len(scene.sender(target)) == 2
    assert scene.publish(content(to=to)) == [refused("write access to topic 'bad.k' in exchange 't'")]


@pytest.mark.rabbitmq("topic_permission_SUITE", "amqp_x_cc_annotation")
@pytest.mark.parametrize(
    ("target", "to"),
    [("/exchanges/t/good.k", None), (None, "/exchanges/t/good.k")],
    ids=["fixed", "anonymous"],
)
def test_a_topic_permission_is_looked_at_for_x_cc(
    scene: Scenario, target: str | None, to: str | None
) -> None:
    """Every key must be allowed, or nothing is published."""
    scene.allow_topics("t", "^good")
    scene.sender(target)
    assert scene.publish(content(to=to, cc=["good.2"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content(to=to, cc=["good.2", "bad.k"])) == [
        refused("write access to topic 'bad.k' in exchange 't'")
    ]
    assert scene.counts("q1") == [1]


def test_topic_permissions_are_for_topic_exchanges(scene: Scenario) -> None:
    """A topic permission on an exchange of another type has no effect."""
    scene.allow_topics("x", "^nothing$")
    scene.sender("/exchanges/x/k")
    assert scene.publish(content(cc=["k"])) == [disposition(0, ACCEPTED)]


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "to", "what"),
    [
        ("/exchanges/x/k", None, "exchange 'x'"),
        ("/queues/q1", None, "exchange 'amq.default'"),
        (None, "/queues/q1", "exchange 'amq.default'"),
    ],
)
def test_a_permission_that_is_taken_away_counts_at_the_next_message(
    scene: Scenario, target: str | None, to: str | None, what: str
) -> None:
    """An open link's permissions are not cached beyond a change; other changes do not matter."""
    scene.sender(target)
    assert scene.publish(content(to=to)) == [disposition(0, ACCEPTED)]
    scene.allow(write=r"^(x|amq\.default)$")
    assert scene.publish(content(to=to)) == [disposition(1, ACCEPTED)]
    scene.allow(configure=".*", read=".*")
    assert scene.publish(content(to=to)) == [refused(f"write access to {what}")]
    assert scene.counts("q1") == [2]


# --- exclusive queues and consumers --------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "attach_to_exclusive_queue")
def test_an_exclusive_queue_of_another_connection_is_locked(scene: Scenario) -> None:
    scene.world.delete("q1")
    declare(scene.world.catalog, scene.world.vhost, "q1", exclusive_owner=object())
    attach, detach = scene.receiver("/queues/q1")
    assert attach == "B> ATTACH name=link-9 h=9 role=sender idc=0 source=null"
    assert detach == detached(9, "amqp:resource-locked", LOCKED)
    scene.sender("/queues/q1")
    assert scene.publish() == [disposition(0, ACCEPTED)]


def test_an_exclusive_consumer_keeps_links_out(scene: Scenario) -> None:
    """The attach is answered and the link is then detached, until the AMQP 0-9-1 consumer is gone."""
    queue = scene.world.queues["q1"].queue
    other = new_reply_to("elsewhere").consumer()
    queue.apply(Subscribe(other, False, exclusive=True), 0)
    attach, detach = scene.receiver("/queues/q1")
    assert attach == "B> ATTACH name=link-9 h=9 role=sender source=/queues/q1 idc=0"
    assert detach == detached(9, UNAUTHORIZED, "queue 'q1' in vhost '/' in exclusive use")
    scene.do("C> DETACH h=9 closed=true")
    queue.apply(Unsubscribe(other, (), (), 0, DeliveryOutcome.REQUEUE), 0)
    assert len(scene.receiver("/queues/q1")) == 1


def test_a_link_keeps_an_exclusive_consumer_out(scene: Scenario) -> None:
    scene.receiver("/queues/q1")
    queue = scene.world.queues["q1"].queue
    elsewhere = new_reply_to("elsewhere")
    queue.take_effects()
    queue.apply(Subscribe(elsewhere.consumer(), False, exclusive=True), 0)
    (effect,) = queue.take_effects()[elsewhere.id]
    assert type(effect).__name__ == "SubscribeRefused"


# --- dynamic termini -----------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "dynamic_target_long_link_name", "dynamic_target_short_link_name")
def test_dynamic_names(scene: Scenario) -> None:
    """The name contains container and link, unless that is too long (dynamic_target_*_link_name)."""
    attach = scene.do("C> ATTACH h=0 target=dynamic capabilities=temporary-queue")[0]
    assert " target=/queues/amq.dyn-client-C-link-0-id1 " in attach
    long = "n" * 142
    attach = scene.do(f"C> ATTACH h=1 name={long} target=dynamic capabilities=temporary-queue")[0]
    assert " target=/queues/amq.dyn.gen-" in attach
    for queue in scene.world.vhost:
        if queue.name.startswith("amq.dyn"):
            assert queue.type == "classic"
            assert queue.owner is scene.world.clients["C"]


@pytest.mark.rabbitmq("amqp_client_SUITE", "dynamic_terminus_delete")
def test_a_dynamic_queue_serves_other_links_and_goes_with_its_own(scene: Scenario) -> None:
    """Other links to it are detached when it is deleted."""
    scene.do("C> ATTACH h=0 source=dynamic capabilities=temporary-queue")
    name = "amq.dyn-client-C-link-0-id1"
    scene.sender(f"/queues/{name}", 1)
    assert scene.publish(handle=1) == [disposition(0, ACCEPTED)]
    lines = scene.do("C> DETACH h=0 closed=true")
    assert lines[0] == "B> DETACH h=0 closed=true"
    assert lines[1] == detached(1, "amqp:resource-deleted", f"queue '{name}' in vhost '/' was deleted")
    assert scene.world.vhost.find(name) is None


@pytest.mark.parametrize("window", ["open", "closed"])
def test_links_end_behind_the_answer_to_who_deleted_their_queue(scene: Scenario, window: str) -> None:
    """Within one session the response precedes the detaches: RabbitMQ's Python client takes a detach before
    it for a failure of the request. A client that takes no response gets the detaches all the same.
    """
    scene.do(
        "C> BEGIN ch=1" if window == "open" else "C> BEGIN ch=1 iw=0",
        "C> ATTACH ch=1 h=1 source=/queues/q1",
        "C> ATTACH ch=1 h=2 target=/queues/q1",
        "C> ATTACH ch=1 h=3 name=pair target=/management snd-settle-mode=settled properties={paired:true}",
        "C> ATTACH ch=1 h=4 name=pair source=/management snd-settle-mode=settled properties={paired:true}",
        "C> FLOW ch=1 h=4 dc=0 cr=5",
    )
    client = scene.world.clients["C"]
    client.bodies = bodies = []
    request = request_message("DELETE", "/queues/q1").hex()
    # Not as a line: the scene's client takes each message that comes for one of its own.
    client.feed(client.encode(f"TRANSFER ch=1 h=3 settled=true payload={request}"))
    scene.world.settle()
    kinds = [type(decode_composite(body)[0]).__name__ for body in bodies]
    wanted = ["Transfer", "Detach", "Detach"] if window == "open" else ["Detach", "Detach"]
    assert [kind for kind in kinds if kind in ("Transfer", "Detach")] == wanted


@pytest.mark.rabbitmq("amqp_client_SUITE", "dynamic_terminus_delete")
@pytest.mark.parametrize("way", ["END", "CLOSE"])
def test_a_dynamic_queue_goes_with_session_and_connection(scene: Scenario, way: str) -> None:
    scene.do("C> ATTACH h=0 source=dynamic capabilities=temporary-queue")
    scene.do("C> ATTACH h=1 target=dynamic capabilities=temporary-queue")
    assert len(scene.world.vhost.queues) == 4
    scene.do(f"C> {way}")
    assert sorted(scene.world.vhost.queues) == ["q1", "q2"]


@pytest.mark.parametrize(
    ("attach", "end"),
    [
        ("source=dynamic capabilities=other", "source"),
        ("target=dynamic capabilities=other", "target"),
        ("target=dynamic capabilities=rabbitmq:volatile-queue", "target"),
    ],
)
def test_other_kinds_of_dynamic_nodes_are_refused(scene: Scenario, attach: str, end: str) -> None:
    _, detach = scene.do(f"C> ATTACH h=0 {attach}")
    assert detach.startswith(
        f'B> DETACH h=0 closed=true error=amqp:not-implemented "Dynamic {end} not supported'
    )
    scene.sender("/queues/q1", 1)
    assert scene.publish(handle=1) == [disposition(0, ACCEPTED)]


def test_unroutable_to_a_deleted_dynamic_queue(scene: Scenario) -> None:
    """A message to its name by the anonymous terminus is released."""
    scene.do("C> ATTACH h=0 source=dynamic capabilities=temporary-queue")
    scene.sender(None, 1)
    to = "/queues/amq.dyn-client-C-link-0-id1"
    assert scene.publish(content(to=to), 1) == [disposition(0, ACCEPTED)]
    scene.do("C> DETACH h=0 closed=true")
    assert scene.publish(content(to=to), 1) == [disposition(1, RELEASED)]
