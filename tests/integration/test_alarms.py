"""An alarm that was measured: memory is really filled until publishers are held, and really emptied again.

The broker is the test's own and in memory, with a watermark that lies 32 MB above
what it needs without messages.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from proton import Delivery
from proton import Message as ProtonMessage

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ReceivingEnd

ROOM_BYTES: Final = 32_000_000
BODY: Final = bytes(60_000)
MESSAGES_MAX: Final = 20 * ROOM_BYTES // len(BODY)
"""Nobody gets as many in: the alarm is on long before, though memory is looked at ten times a second only."""
BATCH: Final = 25


def start(start_broker: StartBroker) -> BrokerProcess:
    """Start a broker that may use `ROOM_BYTES` more than it uses now."""
    broker = start_broker()
    limit = memory(broker)["used_bytes"] + ROOM_BYTES
    done = broker.run_command("alarm", "memory-limit", "absolute", str(limit))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"above {limit} bytes of memory" in done.stdout
    return broker


def memory(broker: BrokerProcess) -> dict[str, Any]:
    shown: dict[str, Any] = broker.status()["broker"]["resources"]["memory"]
    return shown


def consume(receiver: ReceivingEnd, count: int) -> None:
    while count:
        batch = min(count, BATCH)
        receiver.grant(batch)
        receiver.settle(receiver.take(batch))
        count -= batch


@pytest.mark.rabbitmq("amqp_client_SUITE", "resource_alarm_after_session_begin")
def test_memory_is_filled_by_amqp_10_and_emptied_by_consuming_on_a_session_that_publishes_too(
    start_broker: StartBroker, clients: Any, queue: str
) -> None:
    """The window shuts at the watermark and opens later; deliveries go on. The blocked messages are
    published on a session that was begun during the alarm: Proton takes a shut window for a wide open one
    if it arrives while transfers are in flight (its arithmetic is unsigned), and may then send as many as
    the broker tolerates.
    """
    broker = start(start_broker)
    client = clients(broker)
    sender = client.sender(queue)
    payload = ProtonMessage(body=BODY, durable=False).encode()
    sent: list[str] = []

    def is_confirmed() -> bool:
        """Every message has its outcome, or an alarm is on, in which proton may hold some back."""
        return len(sender.outcomes) == len(sent) or memory(broker)["alarm"]

    while not (shown := memory(broker))["alarm"]:
        assert len(sent) < MESSAGES_MAX, f"memory was filled, and nobody held back: {shown}"
        sent += [sender.transfer(payload) for _ in range(BATCH)]
        client.wait(is_confirmed, "outcomes")
    assert len(sent) * len(BODY) > ROOM_BYTES / 2
    assert shown["causes"] == ["measured"]
    entry = broker.wait_for_log("alarm", name="memory", cause="measured")
    assert entry["used_bytes"] > entry["limit_bytes"] == shown["limit_bytes"]
    text = broker.run_command("status").stdout
    assert "ALARM: memory (publishers are blocked)" in text
    assert "waits: blocked-by-alarm" in text

    session = client.session()
    late_sender = client.sender(queue, session=session)
    receiver = client.receiver(queue, session=session)
    held = [late_sender.transfer_now(payload) for _ in range(10)]
    client.flush()
    assert not late_sender.outcomes
    consume(receiver, len(sent))
    broker.wait_until(lambda: not memory(broker)["alarm"], "end of the alarm")
    cleared = broker.wait_for_log("alarm cleared", name="memory")
    assert cleared["used_bytes"] <= shown["alarm_ends_at_bytes"]
    assert [late_sender.outcome(tag).state for tag in held] == [Delivery.ACCEPTED] * len(held)
    consume(receiver, len(held))
    broker.wait_for_counts(queue, ready=0)
    sender.send("and on")
