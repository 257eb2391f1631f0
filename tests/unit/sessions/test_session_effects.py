"""What a session of AMQP 1.0 makes of what queues do, and what it tells them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.performatives import Disposition, Modified, Rejected, decode_composite
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues import commands
from amqp10broker.queues.commands import PublishRejected as Refused
from amqp10broker.sessions.messages import Notice
from tests.support.declaring import declare
from tests.support.notation import message
from tests.support.scenario import Scenario, detached
from tests.support.scripted_queue import ScriptedQueue

QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
FULL = "rejected(amqp:resource-limit-exceeded \"queue 'q' exceeded maximum length\")"


def puppet(scene: Scenario, name: str = "q", **arguments: Any) -> ScriptedQueue:
    declare(
        scene.world.catalog,
        scene.world.vhost,
        name,
        arguments={key.replace("_", "-"): each for key, each in arguments.items()},
    )
    box = scene.world.queues[name]
    return ScriptedQueue(name, box, box.inbox)


def quorum(scene: Scenario, *, single_active: bool = False) -> ScriptedQueue:
    arguments: dict[str, Any] = QUORUM | (SAC if single_active else {})
    declare(scene.world.catalog, scene.world.vhost, "q", arguments=arguments)
    box = scene.world.queues["q"]
    return ScriptedQueue("q", box, box.inbox)


def happen(scene: Scenario, *effects: commands.Effect) -> list[str]:
    scene.world.clients["C"].sessions[0].letters.append(list(effects))
    scene.world.settle()
    return scene.world.take_trace()


def messages(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"\x00\x53\x70\x45", message(b"m%d" % number)) for number in range(count)]


def lines(came: list[str], name: str) -> list[str]:
    return [line for line in came if line.startswith(f"B> {name}")]


# --- publishing into a full queue -----------------------------------------------------------------


@pytest.fixture
def scene() -> Scenario:
    return Scenario()


@pytest.mark.rabbitmq("amqp_client_SUITE", "target_classic_queue_rejects", "target_quorum_queue_rejects")
def test_a_full_queue_rejects_with_its_name(scene: Scenario) -> None:
    """The error is amqp:resource-limit-exceeded, with the queue and the reason in its info."""
    queue = puppet(scene)
    scene.sender("/queues/q")
    client = scene.world.clients["C"]
    client.bodies = []
    scene.publish()
    publish = queue.publish()
    came = happen(scene, Refused(publish.publisher, publish.ids, publish.settled, "q"))
    assert lines(came, "DISPOSITION") == [f"B> DISPOSITION role=receiver first=0 settled=true state={FULL}"]
    error = next(each for each in map(rejection, client.bodies) if each is not None)
    assert error.info == {Symbol("queue"): "q", Symbol("reason"): Symbol("maxlen")}


def rejection(body: bytes) -> Any:
    frame, _ = decode_composite(body)
    if isinstance(frame, Disposition) and isinstance(frame.state, Rejected):
        return frame.state.error
    return None


def test_a_full_queue_drops_what_was_sent_settled(scene: Scenario) -> None:
    queue = puppet(scene)
    scene.sender("/queues/q", snd_settle_mode="settled")
    scene.publish(settled="true")
    publish = queue.publish()
    assert publish.settled
    assert lines(happen(scene, Refused(publish.publisher, publish.ids, True, "q")), "DISPOSITION") == []


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_queues_one_that_is_full_decides(first: int, scene: Scenario) -> None:
    full, other = puppet(scene), puppet(scene, "other")
    scene.exchange("x", "fanout")
    scene.bind("x", "q")
    scene.bind("x", "other")
    scene.sender("/exchanges/x/k")
    scene.publish()
    refused, taken = full.publish(), other.publish()
    said: list[commands.Effect] = [
        Refused(refused.publisher, refused.ids, False, "q"),
        commands.Confirmed(taken.publisher, taken.ids, False),
    ]
    if first:
        said.reverse()
    assert lines(happen(scene, said[0]), "DISPOSITION") == []
    came = lines(happen(scene, said[1]), "DISPOSITION")
    assert came == [f"B> DISPOSITION role=receiver first=0 settled=true state={FULL}"]


def test_of_several_queues_a_full_one_decides_over_a_deleted_one(scene: Scenario) -> None:
    """Released is for deliveries that no queue takes."""
    full, other = puppet(scene), puppet(scene, "other")
    scene.exchange("x", "fanout")
    scene.bind("x", "q")
    scene.bind("x", "other")
    scene.sender("/exchanges/x/k")
    scene.publish()
    refused, gone = full.publish(), other.publish()
    happen(scene, Refused(refused.publisher, refused.ids, False, "q"))
    came = lines(happen(scene, commands.Unconfirmed(gone.publisher, gone.ids, False)), "DISPOSITION")
    assert came == [f"B> DISPOSITION role=receiver first=0 settled=true state={FULL}"]


# --- subscribing ----------------------------------------------------------------------------------


def subscribed(scene: Scenario, queue: ScriptedQueue, **fields: object) -> commands.Subscribe:
    scene.receiver("/queues/q", **fields)
    (subscribe,) = queue.told_only(commands.Subscribe)
    return subscribe


def test_priority_and_time_out_are_link_properties(scene: Scenario) -> None:
    """They are rabbitmq:priority, of any integer type, and rabbitmq:consumer-timeout in ms."""
    queue = quorum(scene)
    name = "connection C, session 0, link 'link-9'"
    assert subscribed(scene, queue) == commands.Subscribe(queue.ref, False, name=name)
    given = "{rabbitmq:priority:7,rabbitmq:consumer-timeout:5000}"
    found = subscribed(scene, queue, handle=10, properties=given)
    assert (found.priority, found.timeout_ms) == (7, 5000)


def test_a_number_that_no_log_can_hold_is_refused(scene: Scenario) -> None:
    """An unsigned long may be larger than the numbers that a quorum queue writes."""
    queue = quorum(scene)
    for handle, name in enumerate(("priority", "consumer-timeout")):
        came = scene.receiver("/queues/q", handle, properties=f"{{rabbitmq:{name}:{2**63}}}")
        text = f"Attach refused: link property rabbitmq:{name} is {2**63}; it must be below 2**63"
        assert came[-1] == detached(handle, "amqp:invalid-field", text)
    assert queue.told() == []


# --- settling -------------------------------------------------------------------------------------


def consuming(scene: Scenario, queue: ScriptedQueue, count: int = 3, **fields: object) -> list[str]:
    scene.receiver("/queues/q", **fields)
    came = scene.do(f"C> FLOW h=9 dc=0 cr={count}")
    (credit,) = queue.told_only(commands.Credit)
    keys = range(100, 100 + count)
    return came + happen(scene, queue.deliver(keys, messages(count)), queue.reply(credit))


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "accept_multiple_message_order_classic_queue",
    "accept_multiple_message_order_quorum_queue",
    "delivery_count_classic_queue",
    "delivery_count_quorum_queue",
    "release_multiple_message_order_classic_queue",
    "release_multiple_message_order_quorum_queue",
    "reliable_send_receive_with_outcomes_quorum_queue",
)
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "reject", "released")
@pytest.mark.parametrize(
    ("state", "delivery_outcome"),
    [
        ("accepted", commands.DeliveryOutcome.ACCEPT),
        ("rejected", commands.DeliveryOutcome.DISCARD_FAILED),
        ("released", commands.DeliveryOutcome.REQUEUE),
        ("modified", commands.DeliveryOutcome.REQUEUE),
        ("modified(failed)", commands.DeliveryOutcome.REQUEUE_FAILED),
        ("modified(undeliverable)", commands.DeliveryOutcome.DISCARD),
        ("modified(failed,undeliverable)", commands.DeliveryOutcome.DISCARD_FAILED),
    ],
)
def test_each_outcome_is_a_verdict(
    state: str, delivery_outcome: commands.DeliveryOutcome, scene: Scenario
) -> None:
    """The command marks a failed attempt, whatever becomes of the message."""
    queue = quorum(scene)
    consuming(scene, queue)
    scene.do(f"C> DISPOSITION role=receiver first=0 last=1 settled=true state={state}")
    assert queue.told() == [Same(commands.Settle(queue.ref, [100, 101], delivery_outcome))]


class Same:
    """Compares records that do not compare themselves."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __eq__(self, other: object) -> bool:
        fields = type(self._record).__dataclass_fields__
        return type(other) is type(self._record) and all(
            list_or_plain(getattr(other, name)) == list_or_plain(getattr(self._record, name))
            for name in fields
        )

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return repr(self._record)


def list_or_plain(value: Any) -> Any:
    return list(value) if isinstance(value, range | tuple) else value


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_quorum_queue")
def test_annotations_of_modified_go_to_quorum_queues() -> None:
    """They are encoded for merging; classic queues keep messages as published."""
    for kind, kept in (("quorum", True), ("classic", False)):
        scene = Scenario()
        queue = quorum(scene) if kind == "quorum" else puppet(scene)
        consuming(scene, queue)
        state = Modified(message_annotations={Symbol("x-why"): "late"})
        frame = Disposition(role=True, first=0, settled=True, state=state).encode()
        scene.do(f"C> RAW hex={(len(frame) + 8).to_bytes(4, 'big').hex()}02000000{frame.hex()}")
        (settle,) = queue.told_only(commands.Settle)
        if kept:
            assert decode(settle.annotations)[0] == {Symbol("x-why"): "late"}
        else:
            assert settle.annotations == b""


def test_a_quorum_queue_is_waited_for(scene: Scenario) -> None:
    """The client gets the settlement when the decision cannot be lost any more."""
    queue = quorum(scene)
    consuming(scene, queue)
    assert scene.do("C> DISPOSITION role=receiver first=0 last=1 state=accepted") == []
    assert scene.do("C> DISPOSITION role=receiver first=2 state=released") == []
    first, second = queue.told_only(commands.Settle)
    assert first.answer
    assert second.answer
    assert happen(scene, commands.Settled(queue.ref, first.keys)) == [
        "B> DISPOSITION role=sender first=0 last=1 settled=true state=accepted"
    ]
    assert happen(scene, commands.Settled(queue.ref, second.keys)) == [
        "B> DISPOSITION role=sender first=2 settled=true state=released"
    ]


def test_what_the_client_settles_before_the_answer_is_not_answered(scene: Scenario) -> None:
    """The client has forgotten the deliveries, so an answer would refer to nothing."""
    queue = quorum(scene)
    consuming(scene, queue)
    scene.do("C> DISPOSITION role=receiver first=0 last=2 state=accepted")
    (asked,) = queue.told_only(commands.Settle)
    scene.do("C> DISPOSITION role=receiver first=0 last=1 settled=true state=accepted")
    assert happen(scene, commands.Settled(queue.ref, asked.keys)) == [
        "B> DISPOSITION role=sender first=2 settled=true state=accepted"
    ]


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "how", "delivery_outcome"),
    [
        ("classic", "C> DETACH h=9 closed=true", commands.DeliveryOutcome.REQUEUE),
        ("quorum", "C> DETACH h=9 closed=true", commands.DeliveryOutcome.REQUEUE),
        ("classic", "C> END", commands.DeliveryOutcome.REQUEUE),
        ("quorum", "C> END", commands.DeliveryOutcome.REQUEUE_FAILED),
        ("classic", "lose C", commands.DeliveryOutcome.REQUEUE),
        ("quorum", "lose C", commands.DeliveryOutcome.REQUEUE_FAILED),
    ],
)
def test_a_link_that_ends_gives_back_its_deliveries(
    kind: str, how: str, delivery_outcome: commands.DeliveryOutcome, scene: Scenario
) -> None:
    """A quorum queue counts the end of a session as a failed attempt, but not a link's own end."""
    queue = quorum(scene) if kind == "quorum" else puppet(scene)
    consuming(scene, queue)
    scene.do(how)
    (gone,) = queue.told_only(commands.Unsubscribe)
    assert gone.delivery_outcome is delivery_outcome


# --- the single active consumer -------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "single_active_consumer_quorum_queue_notification")
@pytest.mark.parametrize("active", [True, False])
def test_a_client_hears_with_its_attach_whether_it_is_the_active_one(active: bool, scene: Scenario) -> None:
    """The attach is answered when the queue has answered, so the client gets this at once. A flow that it
    has sent meanwhile counts: the broker's flow has the link's current state.
    """
    queue = quorum(scene, single_active=True)
    assert scene.receiver("/queues/q") == []
    assert scene.do("C> FLOW h=9 dc=0 cr=10") == []
    assert queue.told_only(commands.Credit) == []
    attach, flow = happen(scene, commands.ActiveChanged(queue.ref, active))
    assert attach == "B> ATTACH name=link-9 h=9 role=sender source=/queues/q idc=0"
    assert f"h=9 dc=0 cr=10 available=0 properties={{rabbitmq:active:{str(active).lower()}}}" in flow
    (credit,) = queue.told_only(commands.Credit)
    assert happen(scene, queue.reply(credit)) == []


def test_a_queue_that_goes_before_it_has_spoken_refuses_the_attach(scene: Scenario) -> None:
    """The client's detach, which is under way by then, answers the broker's."""
    queue = quorum(scene, single_active=True)
    scene.do("C> ATTACH h=9 source=/queues/q ; FLOW h=9 dc=0 cr=10 ; DETACH h=9 closed=true")
    came = happen(scene, commands.QueueDeleted(queue.ref, "q"))
    assert came == [
        "B> ATTACH name=link-9 h=9 role=sender idc=0 source=null",
        detached(9, "amqp:resource-deleted", "queue 'q' in vhost '/' was deleted"),
    ]
    assert scene.receiver("/queues/other", 9)[-1].startswith("B> DETACH h=9")


def test_an_attach_that_the_queue_has_not_answered_ends_with_the_right_to_read(scene: Scenario) -> None:
    """It ends as an answered attach would: the check cannot be bypassed."""
    queue = quorum(scene, single_active=True)
    scene.receiver("/queues/q")
    scene.allow(".*", ".*", "")
    session = scene.world.clients["C"].sessions[0]
    session.letters.append(Notice.ACCESS_CHANGED)
    scene.world.settle()
    assert [line.split()[1] for line in scene.world.take_trace()] == ["ATTACH", "DETACH"]
    assert [type(letter) for letter in queue.told()] == [commands.Subscribe, commands.Unsubscribe]
    assert happen(scene, commands.ActiveChanged(queue.ref, True)) == []


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_consumer_activation_test")
def test_a_waiting_consumer_hears_that_it_became_the_active_one(scene: Scenario) -> None:
    queue = quorum(scene, single_active=True)
    scene.receiver("/queues/q")
    happen(scene, commands.ActiveChanged(queue.ref, False))
    scene.do("C> FLOW h=9 dc=0 cr=5")
    (credit,) = queue.told_only(commands.Credit)
    assert happen(scene, queue.reply(credit)) == []
    came = happen(scene, commands.ActiveChanged(queue.ref, True), queue.deliver([1], messages(1)))
    assert "cr=5 available=0 properties={rabbitmq:active:true}" in came[0]
    assert came[1].startswith("B> TRANSFER")


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "link_state_properties_credit_test")
def test_a_waiting_consumers_echo_and_drain_are_answered() -> None:
    """Each gets one flow, without the activity that it already has."""
    for asked in ("echo=true", "drain=true"):
        scene = Scenario()
        queue = quorum(scene, single_active=True)
        scene.receiver("/queues/q")
        happen(scene, commands.ActiveChanged(queue.ref, False))
        scene.do(f"C> FLOW h=9 dc=0 cr=10 {asked}")
        (credit,) = queue.told_only(commands.Credit)
        (line,) = happen(scene, queue.reply(credit))
        assert "properties" not in line
        assert ("dc=10 cr=0" if "drain" in asked else "dc=0 cr=10") in line


def test_news_of_becoming_inactive_follow_the_deliveries_made_before(scene: Scenario) -> None:
    """They were for the active consumer; the flow does not overtake them."""
    queue = quorum(scene, single_active=True)
    scene.receiver("/queues/q")
    happen(scene, commands.ActiveChanged(queue.ref, True))
    scene.do("C> FLOW h=9 dc=0 cr=10")
    queue.told()
    scene.world.clients["C"].blocked = True
    happen(scene, queue.deliver([1, 2], messages(2)))
    assert happen(scene, commands.ActiveChanged(queue.ref, False)) == []
    scene.world.unblock("C")
    came = [line.split()[1] for line in scene.world.take_trace()]
    assert came == ["TRANSFER", "TRANSFER", "FLOW"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "link_state_properties_consumer_activation_no_optin_test",
    "link_state_properties_consumer_activation_simple_prefetch_test",
    note="told in AMQP 1.0 only",
)
@pytest.mark.parametrize("arguments", [{}, SAC, QUORUM], ids=str)
def test_other_queues_have_no_news(arguments: dict[str, Any], scene: Scenario) -> None:
    declare(scene.world.catalog, scene.world.vhost, "q", arguments=arguments)
    box = scene.world.queues["q"]
    queue = ScriptedQueue("q", box, box.inbox)
    scene.receiver("/queues/q")
    scene.do("C> FLOW h=9 dc=0 cr=10")
    (credit,) = queue.told_only(commands.Credit)
    assert happen(scene, commands.ActiveChanged(queue.ref, True), queue.reply(credit)) == []


# --- held for too long ----------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "consumer_timeout_quorum_queue_consumer_arg", "consumer_timeout_quorum_queue_policy"
)
def test_deliveries_held_too_long_are_released_and_not_settled(scene: Scenario) -> None:
    """The link stays; the client still settles them, and the queue gets no command for that."""
    queue = quorum(scene)
    consuming(scene, queue)
    came = happen(scene, commands.TimedOut(queue.ref, [100, 102], "q"))
    assert came == [
        "B> DISPOSITION role=sender first=0 state=released",
        "B> DISPOSITION role=sender first=2 state=released",
    ]
    queue.told()
    scene.do("C> DISPOSITION role=receiver first=0 last=2 settled=true state=accepted")
    assert queue.told() == [Same(commands.Settle(queue.ref, [101], commands.DeliveryOutcome.ACCEPT))]


def test_deliveries_held_too_long_that_never_left_do_not_leave(scene: Scenario) -> None:
    """The queue has them again: if they were sent now, they would be there twice."""
    queue = quorum(scene)
    scene.receiver("/queues/q")
    scene.do("C> FLOW h=9 dc=0 cr=3")
    (credit,) = queue.told_only(commands.Credit)
    scene.world.clients["C"].blocked = True
    happen(scene, queue.deliver([100, 101, 102], messages(3)), queue.reply(credit))
    assert happen(scene, commands.TimedOut(queue.ref, [100, 102], "q")) == []
    scene.world.unblock("C")
    came = lines(scene.world.take_trace(), "TRANSFER")
    assert [line.rsplit("body=")[1].split()[0] for line in came] == ["m1"]
    (renewed,) = queue.told_only(commands.Credit)
    assert (renewed.delivery_count, renewed.credit) == (3, 2), "what was taken back is asked for again"


def test_settings_of_the_queue_decide_who_is_told_of_activity(scene: Scenario) -> None:
    queue = quorum(scene, single_active=True)
    declared = scene.world.vhost.lookup("q")
    settings = replace(declared.effective.settings, single_active_consumer=False)
    declared.effective = replace(declared.effective, settings=settings)
    scene.receiver("/queues/q")
    assert happen(scene, commands.ActiveChanged(queue.ref, True)) == []
