"""Topics and subscriptions of AMQP 1.0: what clients of JMS find (docs/jms.md)."""

from __future__ import annotations

import pytest

from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.queue_requests import Subscription
from amqp10broker.protocols.amqp10.performatives import decode_composite
from tests.support.declaring import declare
from tests.support.scenario import ACCEPTED, RELEASED, Scenario, content, detached, disposition, ended

LOCKED = "amqp:resource-locked"
DURABLE = {"capabilities": "topic", "durable": 2, "expiry_policy": "never", "distribution_mode": "copy"}


@pytest.fixture
def scene() -> Scenario:
    """Return a scenario whose client C has a session and a link 0 that publishes to news.eu."""
    scene = Scenario()
    scene.sender("/topics/news.eu")
    return scene


def queues(scene: Scenario) -> list[str]:
    return [queue.name for queue in scene.world.catalog]


def taken(scene: Scenario, handle: int, credit: int = 10) -> list[str]:
    """Grant a link its first credit, accept the messages and return their bodies."""
    session = scene.world.clients["C"].mine[0]
    del session.received[:]
    scene.do(f"C> FLOW h={handle} dc=0 cr={credit}")
    if session.unsettled:
        scene.do(
            f"C> DISPOSITION role=receiver first={session.unsettled[0]} last={session.unsettled[-1]} "
            "settled=true state=accepted"
        )
    return list(session.received)


def unsubscribe(scene: Scenario, name: str, handle: int = 30, **fields: object) -> list[str]:
    """Attach with a null source and close, as Qpid JMS does, and return the answer to the attach."""
    words = "".join(f" {key}={value}" for key, value in fields.items())
    answer = scene.do(f"C> ATTACH h={handle} name={name}{words} role=receiver source=null")
    if len(answer) == 1:
        scene.do(f"C> DETACH h={handle} closed=true")
    return answer


# --- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "address", "asked", "answered"),
    [
        ("source", "news", "topic", "topic"),
        ("source", "/topics/news", "topic,queue", "topic"),
        ("source", "/topics/news", "queue,temporary-queue", None),
        ("source", "news", "topic,shared", "topic,shared"),
        ("source", "news", "topic,shared,global", "topic,shared,global"),
        ("source", "/topics/news", "topic,global", "topic"),
        ("target", "news", "topic", "topic"),
        ("target", "/topics/news", "queue", None),
        ("target", "/topics//exchanges/amq.fanout", "topic", "topic"),
    ],
)
def test_a_terminus_of_a_topic_says_so(end: str, address: str, asked: str, answered: str | None) -> None:
    """A bare name gets the capability, any other its address; untrue capabilities are left out."""
    scene = Scenario()
    bodies: list[bytes] = []
    scene.world.clients["C"].bodies = bodies
    scene.do(f"C> ATTACH h=1 {end}={address} capabilities={asked}")
    own = getattr(decode_composite(bodies[0])[0], end)
    assert own.capabilities == (None if answered is None else tuple(answered.split(",")))
    assert own.address == address


def test_a_topic_without_subscribers_accepts_messages(scene: Scenario) -> None:
    """Without subscribers the publisher is not at fault. An exchange without a route still releases."""
    assert scene.publish() == [disposition(0, ACCEPTED)]
    assert scene.publish(settled="true") == []
    scene.sender("/exchanges/amq.topic/news.eu", 1)
    assert scene.publish(handle=1) == [disposition(2, RELEASED)]
    assert queues(scene) == []


def test_each_subscriber_has_a_queue_of_its_own_that_ends_with_its_link(scene: Scenario) -> None:
    """Each gets all messages published from then on; its topic may contain wildcards."""
    scene.publish()
    scene.receiver("news.eu", 10, capabilities="topic")
    scene.receiver("/topics/news.*", 11)
    assert scene.publish() == [disposition(1, ACCEPTED)]
    names = queues(scene)
    assert [name.rpartition("-")[0] for name in names] == [
        "amq.subscription-news.eu",
        "amq.subscription-news.%2A",
    ]
    assert all(queue.exclusive for queue in scene.world.catalog)
    assert taken(scene, 10) == ["m1"]
    assert taken(scene, 11) == ["m1"]
    scene.do("C> DETACH h=10 closed=false")
    assert queues(scene) == names[1:]
    scene.do("C> END")
    assert queues(scene) == []


def test_others_publish_and_bind_there(scene: Scenario) -> None:
    """A topic is a routing key of amq.topic, also by other addresses and in another protocol."""
    scene.do("queue q")
    scene.bind("amq.topic", "q", "news.#")
    scene.receiver("/topics/news.eu", 10)
    scene.sender("/exchanges/amq.topic/news.eu", 1)
    assert scene.publish(handle=1) == [disposition(0, ACCEPTED)]
    scene.publish()
    assert scene.counts("q") == [2]
    assert taken(scene, 10) == ["m0", "m1"]


def test_a_queue_and_a_topic_of_one_name_are_two_things(scene: Scenario) -> None:
    """A bare name without the capability is a queue, as it always was."""
    scene.receiver("news.eu", 10, capabilities="topic")
    scene.receiver("news.eu", 11, capabilities="queue")
    scene.sender("news.eu", 1)
    scene.publish(content("queued"), handle=1)
    scene.publish(content("told"))
    assert taken(scene, 10) == ["told"]
    assert taken(scene, 11) == ["queued"]


def test_an_anonymous_producer_names_topics_and_queues(scene: Scenario) -> None:
    """`to` is an address as in an attach: a bare name makes its queue, a topic needs no subscriber."""
    scene.receiver("/topics/a", 10)
    scene.sender(None, 1)
    assert scene.publish(content("1", to="/topics/a"), handle=1) == [disposition(0, ACCEPTED)]
    assert scene.publish(content("2", to="made"), handle=1) == [disposition(1, ACCEPTED)]
    assert scene.publish(content("3", to="/topics/b"), handle=1) == [disposition(2, ACCEPTED)]
    (answer,) = scene.publish(content("4", to="/topics/"), handle=1)
    assert "state=rejected(amqp:precondition-failed" in answer
    assert taken(scene, 10) == ["1"]
    assert scene.counts("made") == [1]


def test_a_bare_name_of_an_anonymous_producer_is_the_topics_that_is_subscribed_to(scene: Scenario) -> None:
    """This holds while no queue has the name; SmallRye's producers name their topic so."""
    scene.receiver("prices", 10, capabilities="topic")
    scene.receiver("#", 11, capabilities="topic")
    scene.sender(None, 1)
    assert scene.publish(content("1", to="prices"), handle=1) == [disposition(0, ACCEPTED)]
    assert "prices" not in queues(scene)
    # That somebody has subscribed to all topics says nothing of a name.
    assert scene.publish(content("2", to="made"), handle=1) == [disposition(1, ACCEPTED)]
    assert scene.counts("made") == [1]
    scene.publish(content("3", to="/queues/prices"), handle=1)
    scene.world.declare("prices")
    assert scene.publish(content("4", to="prices"), handle=1) == [disposition(3, ACCEPTED)]
    assert scene.counts("prices") == [1]
    scene.do("C> DETACH h=10 closed=true")
    assert taken(scene, 11) == ["1"]


def test_a_bare_name_is_a_queue_again_when_its_last_subscriber_is_gone(scene: Scenario) -> None:
    scene.receiver("prices", 10, capabilities="topic")
    scene.sender(None, 1)
    scene.publish(content("1", to="prices"), handle=1)
    assert taken(scene, 10) == ["1"]
    scene.do("C> DETACH h=10 closed=true")
    scene.publish(content("2", to="prices"), handle=1)
    assert scene.counts("prices") == [1]


def test_who_may_not_write_to_topics_is_refused_where_a_bare_name_is_one(scene: Scenario) -> None:
    """Otherwise a queue without a consumer would be declared."""
    scene.receiver("prices", 10, capabilities="topic")
    scene.sender(None, 1)
    scene.allow(configure=".*", write="^amq.default$", read=".*")
    assert "amqp:unauthorized-access" in scene.publish(content("1", to="prices"), handle=1)[0]
    assert "prices" not in queues(scene)


@pytest.mark.parametrize("address", ["/topics/", "/topics//", "/topics/" + 256 * "x"])
def test_an_address_that_names_no_topic_is_refused(address: str) -> None:
    scene = Scenario()
    refused = scene.receiver(address)
    assert refused[0].endswith("source=null")
    assert "error=amqp:invalid-field" in refused[1]


def test_names_of_topics_are_taken_as_they_are(scene: Scenario) -> None:
    """JMS clients prepend the prefix to any name, so nothing in it is an escape."""
    for name in ("100%", "a?b", "a%20b", "ünï/cödé"):
        scene.sender(f"/topics/{name}", 1)
        scene.world.declare(name)
        scene.bind("amq.topic", name, name)
        scene.publish(handle=1)
        assert scene.counts(name) == [1]
        scene.do("C> DETACH h=1 closed=true")


# --- durable subscriptions -----------------------------------------------------------------------


def test_a_durable_subscription_collects_until_it_is_closed(scene: Scenario) -> None:
    """A detach keeps it and new messages; the attach answers durable=configuration, expiry never."""
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    source = decode_composite(bodies[-1])[0].source
    assert (source.durable, source.expiry_policy, source.timeout) == (1, "never", 0)
    assert source.distribution_mode == "copy"
    scene.do("C> DETACH h=10 closed=false")
    scene.publish()
    assert queues(scene) == ["subscription:client-C:sub"]
    scene.receiver("news.eu", 11, name="sub", **DURABLE)
    assert taken(scene, 11) == ["m0"]
    scene.do("C> END", "C> BEGIN")
    assert queues(scene) == ["subscription:client-C:sub"]
    scene.receiver("news.eu", 12, name="sub", **DURABLE)
    scene.do("C> DETACH h=12 closed=true")
    assert queues(scene) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"durable": 2, "expiry_policy": "session-end"},
        {"durable": 0, "expiry_policy": "never"},
        {"expiry_policy": "never"},
    ],
)
def test_what_is_half_durable_ends_with_its_link(scene: Scenario, fields: dict[str, object]) -> None:
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.receiver("news.eu", 10, capabilities="topic", **fields)
    source = decode_composite(bodies[-1])[0].source
    assert (source.durable, source.expiry_policy, source.timeout) == (0, "link-detach", 0)
    scene.do("C> DETACH h=10 closed=false")
    assert queues(scene) == []


def test_a_durable_subscription_says_what_it_is(scene: Scenario) -> None:
    scene.receiver("news.eu", 10, name="a:b%c", **DURABLE)
    (queue,) = scene.world.catalog
    assert queue.name == "subscription:client-C:a%3Ab%25c"
    assert queue.durable
    assert queue.arguments["x-subscription"] == {
        "topic": "news.eu",
        "container": "client-C",
        "name": "a:b%c",
        "durable": True,
    }
    assert Subscription.of(queue) == Subscription("news.eu", "client-C", "a:b%c", durable=True)


def test_a_durable_subscription_has_one_consumer(scene: Scenario) -> None:
    """Another connection of the container is refused, and the one that has it keeps it."""
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    scene.do("connect D container=client-C", "D> BEGIN")
    words = "".join(f" {key}={value}" for key, value in DURABLE.items())
    refused = scene.do(f"D> ATTACH h=1 name=sub{words} source=news.eu")
    text = "subscription 'sub' is in use: close its consumers first"
    assert refused[0].endswith("source=null")
    assert refused[1].endswith(f'error={LOCKED} "{text}"')
    scene.publish()
    assert taken(scene, 10) == ["m0"]


def test_another_topic_makes_another_subscription(scene: Scenario) -> None:
    """The old one is deleted with its messages, and must have no consumer."""
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    scene.do("C> DETACH h=10 closed=false")
    scene.publish()
    scene.receiver("sport", 11, name="sub", **DURABLE)
    scene.publish()
    scene.sender("/topics/sport", 1)
    scene.publish(content("goal"), handle=1)
    assert taken(scene, 11) == ["goal"]
    assert queues(scene) == ["subscription:client-C:sub"]


def test_a_queue_of_that_name_that_is_no_subscription_is_left_alone(scene: Scenario) -> None:
    scene.do("queue subscription:client-C:sub")
    refused = scene.receiver("news.eu", 10, name="sub", **DURABLE)
    assert "error=amqp:precondition-failed" in refused[1]
    assert queues(scene) == ["subscription:client-C:sub"]


def test_a_null_source_comes_back_to_a_subscription_to_end_it(scene: Scenario) -> None:
    """The answer has the actual source; an unknown one gets a null source and a not-found detach."""
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    scene.do("C> DETACH h=10 closed=false")
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    assert len(unsubscribe(scene, "sub")) == 1
    source = decode_composite(bodies[0])[0].source
    assert (source.address, source.durable, source.expiry_policy) == ("/topics/news.eu", 1, "never")
    assert source.capabilities == ("topic",)
    assert queues(scene) == []
    attach, detach = unsubscribe(scene, "sub")
    assert attach.endswith("source=null")
    assert "closed=true error=amqp:not-found" in detach


def test_a_null_source_may_be_consumed_from(scene: Scenario) -> None:
    """The link has its subscription, and a detach keeps it."""
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    scene.do("C> DETACH h=10 closed=false")
    scene.publish()
    scene.do("C> ATTACH h=11 name=sub role=receiver source=null")
    assert taken(scene, 11) == ["m0"]
    scene.do("C> DETACH h=11 closed=false")
    assert queues(scene) == ["subscription:client-C:sub"]


# --- shared subscriptions ------------------------------------------------------------------------


def test_links_share_a_subscription_by_the_name_before_the_bar(scene: Scenario) -> None:
    """Each message goes to one of them; another name is another subscription."""
    scene.receiver("news.eu", 10, name="s|volatile1", capabilities="topic,shared")
    scene.receiver("news.eu", 11, name="s|volatile2", capabilities="topic,shared")
    scene.receiver("news.eu", 12, name="t|volatile1", capabilities="topic,shared")
    assert queues(scene) == ["subscription-shared:client-C:s", "subscription-shared:client-C:t"]
    scene.do("C> FLOW h=10 dc=0 cr=1", "C> FLOW h=11 dc=0 cr=1")
    assert len([line for line in scene.publish() if "TRANSFER" in line]) == 1
    assert len([line for line in scene.publish() if "TRANSFER" in line]) == 1
    assert scene.counts("subscription-shared:client-C:s") == [0]
    assert scene.counts("subscription-shared:client-C:t") == [2]


def test_a_global_subscription_is_shared_by_all_containers(scene: Scenario) -> None:
    """Programs without a client id use it so; a container's own subscription is another."""
    scene.do("connect D", "D> BEGIN")
    for client, handle in (("C", 10), ("D", 1)):
        scene.do(
            f"{client}> ATTACH h={handle} name=s|global capabilities=topic,shared,global durable=2 "
            "expiry-policy=never distribution-mode=copy source=news.eu"
        )
        scene.do(f"{client}> FLOW h={handle} dc=0 cr=1")
    scene.receiver("news.eu", 11, name="s", **DURABLE | {"capabilities": "topic,shared"})
    assert queues(scene) == ["subscription:*:s", "subscription:client-C:s"]
    came = scene.publish() + scene.publish()
    assert sorted(line.split()[0] for line in came if "TRANSFER" in line) == ["B>", "B>D"]


def test_a_shared_durable_subscription_outlives_its_links(scene: Scenario) -> None:
    """A detach keeps it; a close deletes it when it has no other consumer."""
    shared = DURABLE | {"capabilities": "topic,shared"}
    scene.receiver("news.eu", 10, name="s", **shared)
    scene.receiver("news.eu", 11, name="s|2", **shared)
    scene.do("C> DETACH h=10 closed=false", "C> DETACH h=11 closed=false")
    scene.publish()
    scene.receiver("news.eu", 12, name="s", **shared)
    assert taken(scene, 12) == ["m0"]
    assert queues(scene) == ["subscription:client-C:s"]


def test_a_shared_subscription_in_use_cannot_be_unsubscribed(scene: Scenario) -> None:
    """It cannot be changed either; without consumers both work."""
    shared = DURABLE | {"capabilities": "topic,shared,global"}
    scene.receiver("news.eu", 10, name="s|global", **shared)
    hint = {"desired_capabilities": "shared,global"}
    attach, detach = unsubscribe(scene, "s", 30, **hint)
    assert attach.endswith("source=null")
    assert detach == detached(30, LOCKED, "subscription 's' is in use: close its consumers first")
    assert LOCKED in scene.receiver("sport", 11, name="s|global2", **shared)[1]
    scene.do("C> DETACH h=10 closed=false")
    assert len(unsubscribe(scene, "s|global", 31)) == 1
    assert queues(scene) == []


@pytest.mark.parametrize("first", ["topic", "topic,shared"])
def test_a_name_is_of_a_shared_subscription_or_of_one_that_is_not(scene: Scenario, first: str) -> None:
    other = {"topic": "topic,shared", "topic,shared": "topic"}[first]
    scene.receiver("news.eu", 10, name="s", **DURABLE | {"capabilities": first})
    scene.do("C> DETACH h=10 closed=false")
    refused = scene.receiver("news.eu", 11, name="s", **DURABLE | {"capabilities": other})
    assert "error=amqp:precondition-failed" in refused[1]
    assert "not shared" in refused[1] if first == "topic" else "is shared" in refused[1]


# --- temporary topics ----------------------------------------------------------------------------


def temporary_topic(scene: Scenario, handle: int = 5) -> str:
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.do(f"C> ATTACH h={handle} capabilities=temporary-topic target=dynamic")
    client.bodies = None
    target = decode_composite(bodies[0])[0].target
    assert target.dynamic
    assert target.capabilities == ("temporary-topic",)
    assert target.address.startswith("/topics/amq.temporary-topic-")
    return str(target.address)


def test_a_temporary_topic_is_for_its_connection_and_all_may_send_to_it(scene: Scenario) -> None:
    """Links attach to its address, or use it in `to`; each subscriber gets a copy."""
    address = temporary_topic(scene)
    assert scene.publish(handle=5) == [disposition(0, ACCEPTED)]
    for handle in (10, 11):
        (attach,) = scene.receiver(address, handle, capabilities="temporary-topic")
        assert f"source={address}" in attach
    scene.do("connect D", "D> BEGIN")
    refused = scene.do(f"D> ATTACH h=1 source={address}")
    assert refused[0].endswith("source=null")
    assert f"error={LOCKED}" in refused[1]
    scene.do(f"D> ATTACH h=2 target={address}", "D> TRANSFER h=2 body=theirs")
    scene.sender(None, 1)
    scene.publish(content("mine", to=address), handle=1)
    assert [taken(scene, handle) for handle in (10, 11)] == 2 * [["theirs", "mine"]]


def test_a_temporary_topic_ends_with_its_link(scene: Scenario) -> None:
    """After that, attached links cannot publish to it either, and its address is not found."""
    address = temporary_topic(scene)
    name = address.removeprefix("/topics/")
    scene.sender(address, 6)
    scene.sender(None, 1)
    scene.do("C> DETACH h=5 closed=true")
    assert queues(scene) == []
    text = f"no temporary topic '{name}' in vhost '/': it was deleted"
    for end in ("source", "target"):
        refused = scene.do(f"C> ATTACH h=20 {end}={address}")
        assert refused[0].endswith(f"{end}=null")
        assert refused[1] == detached(20, "amqp:not-found", text)
    (answer,) = scene.publish(content(to=address), handle=1)
    assert f'state=rejected(amqp:not-found "{text}")' in answer
    released, gone = scene.publish(handle=6)
    assert released == disposition(1, RELEASED)
    assert gone == detached(6, "amqp:resource-deleted", f"temporary topic '{name}' in vhost '/' was deleted")


def test_a_temporary_topic_ends_with_its_session(scene: Scenario) -> None:
    temporary_topic(scene)
    scene.do("C> END")
    assert queues(scene) == []


def test_a_temporary_topic_needs_the_rights_of_its_name(scene: Scenario) -> None:
    scene.allow(configure="amq.dyn.*", write="amq.topic")
    (end,) = scene.do("C> ATTACH h=5 capabilities=temporary-topic target=dynamic")
    assert end.startswith('B> END error=amqp:unauthorized-access "configure access to queue')


# --- selectors, and no-local ---------------------------------------------------------------------

SELECTOR = "apache.org:selector-filter:string"
NO_LOCAL = "apache.org:no-local-filter:list"


@pytest.mark.parametrize("descriptor", [SELECTOR, "0x0000468C00000004"])
def test_a_subscription_takes_in_what_its_selector_selects(scene: Scenario, descriptor: str) -> None:
    """A message that is not selected is accepted and not kept; the answer has the filter."""
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.receiver("/topics/news.eu", 10, filter=descriptor)  # a = 1
    assert list(decode_composite(bodies[0])[0].source.filter) == ["a-filter"]
    for body, application in (("no", {"a": 2}), ("yes", {"a": 1}), ("none", {})):
        answer = scene.publish(content(body, application=application))
        assert answer[-1].endswith(ACCEPTED)
    (queue,) = scene.world.catalog
    assert queue.handle.ready == 1
    assert taken(scene, 10) == ["yes"]


def test_messages_of_one_read_are_selected_each_by_itself(scene: Scenario) -> None:
    scene.receiver("/topics/news.eu", 10, filter=SELECTOR)
    one, other = content("one", application={"a": 1}).hex(), content("other", application={"a": 2}).hex()
    answer = scene.do(
        f"C> TRANSFER h=0 did=0 payload={one} ; TRANSFER h=0 did=1 payload={other} ; "
        f"TRANSFER h=0 did=2 payload={one}"
    )
    assert {line.partition(" settled")[0] for line in answer} <= {
        "B> DISPOSITION role=receiver first=0 last=2",
        *(f"B> DISPOSITION role=receiver first={number}" for number in range(3)),
        "B> DISPOSITION role=receiver first=0 last=1",
    }
    assert taken(scene, 10) == ["one", "one"]


def test_another_selector_makes_another_subscription(scene: Scenario) -> None:
    """The messages of the old durable subscription are gone."""
    scene.receiver("news.eu", 10, name="sub", **DURABLE)
    scene.do("C> DETACH h=10 closed=false")
    scene.publish()
    scene.receiver("news.eu", 11, name="sub", filter=SELECTOR, **DURABLE)
    assert taken(scene, 11) == []
    scene.do("C> DETACH h=11 closed=false")
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    unsubscribe(scene, "sub")
    (described,) = decode_composite(bodies[0])[0].source.filter.values()
    assert (described.descriptor, described.value) == (SELECTOR, "a = 1")


def test_a_subscriber_that_wants_nothing_local_gets_what_others_publish(scene: Scenario) -> None:
    """Others are other containers; a publisher without another subscriber gets accepted."""
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.receiver("/topics/news.eu", 10, filter=NO_LOCAL)
    assert list(decode_composite(bodies[0])[0].source.filter) == ["a-filter"]
    client.bodies = None
    assert scene.publish() == [disposition(0, ACCEPTED)]
    scene.do("connect D", "D> BEGIN", "D> ATTACH h=0 target=/topics/news.eu", "D> TRANSFER h=0 body=theirs")
    scene.sender(None, 1)
    scene.publish(content("mine", to="/topics/news.eu"), handle=1)
    assert taken(scene, 10) == ["theirs"]


def test_of_a_shared_subscription_no_local_is_not_in_place(scene: Scenario) -> None:
    """Its links are of several connections, so the answer does not have the filter."""
    bodies: list[bytes] = []
    client = scene.world.clients["C"]
    client.bodies = bodies
    scene.receiver("/topics/news.eu", 10, capabilities="shared", filter=NO_LOCAL)
    assert decode_composite(bodies[0])[0].source.filter is None


# --- permissions ---------------------------------------------------------------------------------

OWN = "amq.subscription-news.eu-.*"
ENOUGH = {"configure": OWN, "write": OWN, "read": rf"{OWN}|amq\.topic"}


@pytest.mark.parametrize(
    ("without", "refused"),
    [
        ({"configure": ""}, "configure access to queue"),
        ({"write": ""}, "write access to queue"),
        ({"read": OWN}, "read access to exchange 'amq.topic'"),
        ({"read": r"amq\.topic"}, "read access to queue"),
    ],
)
def test_a_subscriber_needs_what_the_three_steps_need(without: dict[str, str], refused: str) -> None:
    scene = Scenario()
    scene.allow(**ENOUGH)
    assert len(scene.receiver("/topics/news.eu")) == 1
    scene = Scenario()
    scene.allow(**ENOUGH | without)
    (end,) = scene.receiver("/topics/news.eu")
    assert end.startswith(f'B> END error=amqp:unauthorized-access "{refused}')
    assert queues(scene) == []


def test_a_publisher_needs_the_exchange_and_the_topic(scene: Scenario) -> None:
    scene.allow_topics("amq.topic", r"^sport\.")
    text = "write access to topic 'news.eu' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    assert scene.publish() == [ended("amqp:unauthorized-access", text)]


def test_a_queue_says_why_its_subscription_is_none() -> None:
    """The argument of a queue that is declared by hand is checked."""
    scene = Scenario()
    for value in (
        "news",
        {},
        {"topic": 1},
        {"topic": "news", "unknown": "x"},
        {"topic": "news", "selector": "a ="},
    ):
        with pytest.raises(InvalidArgument, match="x-subscription"):
            declare(scene.world.catalog, scene.world.vhost, "q", arguments={"x-subscription": value})
