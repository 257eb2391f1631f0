"""Cases of RabbitMQ's amqp_client_SUITE that no other test has: credit that waits, or is renewed.

`make docs` writes a page with the test of each case.
"""

from __future__ import annotations

import pytest

from amqp10broker.message.amqp10 import SECTIONS_MAX
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from tests.support.script import ScriptRunner
from tests.support.session_harness import Harness

SETTLED = " snd-settle-mode=settled"
UNSETTLED = ""


def attached(mode: str) -> Harness:
    runner = ScriptRunner()
    runner.run(f"queue q\nC> BEGIN\nC> ATTACH h=0 source=/queues/q{mode}\n")
    return runner.world


def say(world: Harness, frame: str) -> None:
    world.clients["C"].send(frame)
    world.settle()


def take(world: Harness) -> list[str]:
    received = world.clients["C"].mine[0].received
    taken = received[:]
    received.clear()
    return taken


def bodies(first: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(first, end)]


@pytest.mark.rabbitmq("amqp_client_SUITE", "receive_many_made_available_over_time_classic_queue")
@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "async_notify_settled_classic_queue", "async_notify_unsettled_classic_queue"
)
@pytest.mark.parametrize("mode", [SETTLED, UNSETTLED])
def test_credit_that_waits_is_used_by_messages_as_they_come(mode: str) -> None:
    world = attached(mode)
    say(world, "FLOW h=0 dc=0 cr=30")
    assert take(world) == []
    for first in range(0, 40, 10):
        world.publish("q", 10)
        assert take(world) == bodies(first, min(first + 10, 30))
    assert world.queues["q"].queue.ready == 10


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "sync_get_settled_classic_queue",
    "sync_get_unsettled_2_classic_queue",
    "sync_get_unsettled_classic_queue",
)
@pytest.mark.parametrize("credit", [1, 2])
@pytest.mark.parametrize("mode", [SETTLED, UNSETTLED])
def test_each_grant_gets_so_many_messages(mode: str, credit: int) -> None:
    """Each grant yields exactly its number; there is none without a grant or from an empty queue."""
    world = attached(mode)
    world.publish("q", 2 * credit)
    for first in (0, credit):
        say(world, f"FLOW h=0 dc={first} cr={credit}")
        assert take(world) == bodies(first, first + credit)
        if mode == UNSETTLED:
            assert world.queues["q"].queue.unsettled == credit
            last = first + credit - 1
            say(world, f"DISPOSITION role=receiver first={first} last={last} settled=true state=accepted")
        assert world.queues["q"].queue.unsettled == 0
    say(world, f"FLOW h=0 dc={2 * credit} cr={credit}")
    assert take(world) == []


@pytest.mark.rabbitmq("amqp_client_SUITE", "receive_many_auto_flow_classic_queue")
@pytest.mark.parametrize("mode", [SETTLED, UNSETTLED])
def test_a_consumer_that_renews_its_credit_at_half_gets_everything(mode: str) -> None:
    world = attached(mode)
    say(world, "FLOW iw=5000 h=0 dc=0 cr=50")
    world.publish("q", 3000)
    received: list[str] = []
    while got := take(world):
        assert len(got) <= 50
        received += got
        say(world, f"FLOW h=0 dc={len(received)} cr=50 iw=5000")
    assert received == bodies(0, 3000)
    assert world.queues["q"].queue.ready == 0


DATA = encode(Described(ULong(0x75), b"x"))


def published(content: bytes) -> str:
    runner = ScriptRunner()
    runner.run("queue q\nC> BEGIN\nC> ATTACH h=0 target=/queues/q\n")
    *_, answer = runner.run(f"C> TRANSFER h=0 payload={content.hex()}\n").splitlines()
    return answer


@pytest.mark.rabbitmq("binary_parser_SUITE", "validate_too_many_sections")
@pytest.mark.parametrize(
    ("sections", "answer"), [(SECTIONS_MAX, "state=accepted"), (SECTIONS_MAX + 1, "amqp:decode-error")]
)
def test_a_message_has_at_most_ten_thousand_sections(sections: int, answer: str) -> None:
    assert answer in published(DATA * sections)


@pytest.mark.rabbitmq(
    "binary_parser_SUITE",
    "server_mode_body_descriptor_prefix_collision",
    "server_mode_symbolic_body_descriptors",
    "validate_nested_section_descriptor",
    "validate_symbolic_descriptors",
)
@pytest.mark.parametrize(
    ("content", "answer"),
    [
        pytest.param(encode(Described(Symbol("amqp:data:binary"), b"x")), "state=accepted", id="symbol"),
        pytest.param(b"\x00\x80" + bytes(7) + b"\x75\xa0\x01x", "state=accepted", id="long number"),
        pytest.param(b"\x00" + DATA + b"\xa0\x01x", "amqp:decode-error", id="a section as descriptor"),
        pytest.param(encode(Described(Symbol("amqp:dat"), b"x")), "amqp:decode-error", id="part of a name"),
        pytest.param(encode(Described("amqp:data:binary", b"x")), "amqp:decode-error", id="a string"),
        pytest.param(b"\x00\x52\x75\xa0\x01x", "amqp:decode-error", id="a uint"),
    ],
)
def test_a_section_is_known_by_its_descriptor(content: bytes, answer: str) -> None:
    assert answer in published(content)
