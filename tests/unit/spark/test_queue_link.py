"""The receiving end of a queue source against a broker's sessions and queues, without a socket.

This broker writes all that was granted before it hears of anything else: the worst that a stop may meet.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from amqp10broker.client.blocking import BulkEnd
from amqp10broker.client.message import data_message, decode_message
from amqp10broker.client.session import ClientSession
from amqp10broker.protocols.amqp10.performatives import Accepted, Released
from amqp10broker.spark.queue.link import MESSAGE_COST_BYTES, CreditPacing
from tests.unit.client.back_to_back import BackToBack

ROOM = 50_000
LARGE = 10_000


def filled(pair: BackToBack, session: ClientSession, sizes: list[int]) -> list[bytes]:
    """Put messages into queue q and return their bodies."""
    made = [b"%d" % number + bytes(size) for number, size in enumerate(sizes)]
    sender = session.sender("q")
    keys = sender.send([data_message(body) for body in made])
    pair.carry()
    assert sender.take_outcomes(keys) == [Accepted()] * len(made)
    return made


def bodies(payloads: Iterable[bytes]) -> list[bytes]:
    return [decode_message(payload).body for payload in payloads]


def attached(pair: BackToBack, session: ClientSession, grants: CreditPacing) -> BulkEnd:
    end = session.receiver("q", end_type=BulkEnd)
    assert isinstance(end, BulkEnd)
    pair.carry()
    assert end.attached
    end.keep = grants.keep
    return end


@pytest.mark.parametrize("chunk_bytes", [7, 3000, 1 << 20])
def test_what_there_is_no_room_for_goes_back_in_order(chunk_bytes: int) -> None:
    """However much was under way when the credit was taken back, and however it is cut."""
    pair = BackToBack(chunk_bytes=chunk_bytes, frame_size_max_bytes=4096)
    session = pair.opened()
    messages = filled(pair, session, [1] * 20 + [LARGE] * 80)
    grants = CreditPacing(1000, ROOM)
    end = attached(pair, session, grants)
    end.grant(300)
    pair.carry()
    kept = bodies(end.payloads)
    held = sum(len(payload) + MESSAGE_COST_BYTES for payload in end.payloads)
    assert kept == messages[: len(kept)]
    assert 20 < len(kept) < 26
    assert ROOM <= held < ROOM + LARGE + MESSAGE_COST_BYTES + 100
    assert grants.full
    assert end.credit == 200

    end.stop()
    assert not end.stopped
    pair.carry()
    assert end.stopped
    end.settle_all(end.surplus, Released())
    pair.carry()
    assert pair.broker.queue("q") == (100 - len(kept), len(kept))

    end.settle_all(end.unsettled, Accepted())
    end.payloads.clear()
    grants.begin()
    end.grant(3)
    pair.carry()
    assert bodies(end.payloads) == messages[len(kept) : len(kept) + 3]
    assert pair.broker.queue("q") == (100 - len(kept) - 3, 3)


def test_messages_that_come_after_the_stop_are_not_kept() -> None:
    """They were under way, and the credit that covered them has been taken back meanwhile."""
    pair = BackToBack()
    session = pair.opened()
    messages = filled(pair, session, [LARGE] * 3)
    grants = CreditPacing(1000, LARGE)
    end = attached(pair, session, grants)
    end.grant(2)
    up = pair.client.take_output()
    pair.broker.receive(up)
    coming = pair.broker.run()
    grants.keep([LARGE])
    assert grants.full
    end.stop()
    pair.client.receive(coming)
    assert pair.client.failure is None
    assert end.failure is None
    assert not end.stopped
    assert end.payloads == []
    pair.carry()
    assert end.stopped
    end.settle_all(end.surplus, Released())
    pair.carry()
    assert pair.broker.queue("q") == (3, 0)
    grants.begin()
    end.grant(1)
    pair.carry()
    assert bodies(end.payloads) == messages[:1]
