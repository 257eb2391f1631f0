"""A broker that is killed at random moments under load: what it has accepted into a stream is there.

Short here; ``AMQP10BROKER_CRASH_ROUNDS`` makes it long.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Described, Message, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration

ROUNDS = int(os.environ.get("AMQP10BROKER_CRASH_ROUNDS", "3"))
STREAM = "crash"
SEEN_AGAIN = 100
"""Of what was there before a round, so many are read again after it; all in the end."""


def publish_until_killed(broker: BrokerProcess, start: int, after_s: float) -> tuple[int, int]:
    """Publish numbers from `start` on until the broker is dead.

    Returns:
        The number behind the last one that was accepted, and behind the last one that was sent.
    """
    client = ProtonClient(broker.port)
    sender = client.sender(STREAM)
    killer = threading.Timer(after_s, broker.kill)
    killer.start()
    tags: list[str] = []
    with suppress(Exception):
        while True:
            while sender.link.credit > 0:
                number = start + len(tags)
                tags.append(sender.transfer_now(Message(body=number, durable=True)))
            client.flush()
    killer.join()
    accepted = 0
    for place, tag in enumerate(tags):
        outcome = sender.outcomes.get(tag)
        if outcome is not None and outcome.state == Delivery.ACCEPTED:
            accepted = place + 1
    with suppress(Exception):
        client.close()
    return start + accepted, start + len(tags)


def read_from(broker: BrokerProcess, offset: int) -> list[tuple[int, int]]:
    """All messages from an offset on: (offset, number)."""
    client = ProtonClient(broker.port)
    spec = Described(symbol("rabbitmq:stream-offset-spec"), offset)

    def put(link: Any) -> None:
        link.source.filter.put_dict({symbol("offset"): spec})

    receiver = client.receiver(STREAM, apply=[put], credit=1_000_000, snd_settle_mode=1)
    receiver.drain()
    found = [
        (int(each.message.annotations[symbol("x-stream-offset")]), int(each.message.body))
        for each in receiver.received
    ]
    client.close()
    return found


def check(found: list[tuple[int, int]], held: list[int], first: int, accepted: int, sent: int) -> list[int]:
    """Compare what is there with what was before, and with what the last round did; gives the numbers.

    Args:
        found: offsets and numbers.
        held: the numbers that were there before the last round.
        first: that was sent in it.
        accepted: behind the last number that was accepted.
        sent: behind the last number that was sent.
    """
    start = found[0][0] if found else len(held)
    assert [offset for offset, _ in found] == list(range(start, start + len(found)))
    assert start + len(found) >= len(held), "what was there is gone"
    numbers = held[:start] + [number for _, number in found]
    assert numbers[: len(held)] == held, "what was there has changed"
    fresh = numbers[len(held) :]
    assert fresh == list(range(first, first + len(fresh))), "a gap, another order, or twice"
    assert first + len(fresh) >= accepted, "accepted and lost"
    assert first + len(fresh) <= sent, "never sent"
    return numbers


def test_what_was_accepted_survives_every_kill(tmp_path: Path) -> None:
    """In order, without a gap, and nothing that was never sent; a number in doubt is there once or not."""
    rng = random.Random(ROUNDS)
    first = accepted = sent = 0
    held: list[int] = []
    for number in range(ROUNDS + 1):
        folder = tmp_path / f"broker{number}"
        folder.mkdir()
        broker = BrokerProcess(folder, "--data-dir", str(tmp_path / "data"))
        try:
            if number == 0:
                declare = ["queue", "declare", STREAM, "--type", "stream"]
                limit = "x-stream-max-segment-size-bytes=20000"
                assert broker.run_command(*declare, "--argument", limit).returncode == 0
            last = number == ROUNDS
            found = read_from(broker, 0 if last else max(0, len(held) - SEEN_AGAIN))
            held = check(found, held, first, accepted, sent)
            if not last:
                first = sent
                accepted, sent = publish_until_killed(broker, sent, rng.uniform(0.05, 0.5))
        finally:
            broker.kill()
    assert len(held) > 10
