"""Staged stalls of clients that publish over AMQP 1.0: who holds them back, and that nobody does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from amqp10broker.protocols.amqp10.performatives import Flow
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient
from tests.support.rawprocess import RawSocket
from tests.support.stalls import SENDER, waits

pytestmark = pytest.mark.integration

SYNC_MS = 600_000
"""Longer than any test looks: the disk does not come to an end."""


@pytest.fixture
def open_raw(broker: BrokerProcess) -> Iterator[Callable[..., RawSocket]]:
    """Connect raw clients; they are closed when the test is over."""
    opened: list[RawSocket] = []

    def connect(**options: Any) -> RawSocket:
        channels = options.pop("channels", 1)
        client = RawSocket(broker.port, **options)
        opened.append(client)
        return client.open(channels=channels)

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a queue of each kind, whose syncs take for ever, as good as; it is killed in the end."""
    definitions = tmp_path / "definitions.json"
    queues = [
        {"name": kind, "vhost": "/", "durable": True, "arguments": {"x-queue-type": kind}}
        for kind in ("classic", "quorum", "stream")
    ]
    definitions.write_text(json.dumps({"queues": queues}))
    broker = BrokerProcess(
        tmp_path,
        *("--data-dir", str(tmp_path / "data"), "--definitions", str(definitions)),
        *("--test-mode", "--sync-delay", str(SYNC_MS), "--max-link-credit", "4"),
    )
    yield broker
    broker.kill()
    broker.check_log()


def publish(client: ProtonClient, queue: str, count: int) -> None:
    """Hand so many durable messages over; those that find no credit stay in proton."""
    sender = client.sender(queue)
    for number in range(count):
        sender.transfer_now(Message(body=str(number), durable=True))
    client.flush()


def use_up_credit(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Let proton send until the broker grants no more."""

    def used_up() -> bool:
        return any(each["role"] == SENDER and each["credit"] == 0 for each in broker.links(queue))

    client.wait(used_up, "all credit is used")


# --- nobody holds them back -----------------------------------------------------------------------


# --- credit is withheld ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_sync_takes_long(slow_disk: BrokerProcess, kind: str) -> None:
    """Which queue, how many, and that a sync is running; status counts that one, too."""
    client = ProtonClient(slow_disk.port)
    publish(client, kind, 10)
    use_up_credit(slow_disk, client, kind)
    link = waits(
        slow_disk,
        "credit-withheld-by-sync",
        role=SENDER,
        address=kind,
        says=(f"queue '{kind}' has ", " unconfirmed, the oldest for", "because a sync has been running for"),
    )
    assert "max_link_credit is 4" in link["waits_why"]
    journal = slow_disk.status()["broker"]["journal"]
    assert journal["sync_running"]
    assert journal["last_sync_ms"] > 0


# --- the whole session is held --------------------------------------------------------------------


# --- what clients do to themselves ----------------------------------------------------------------


def test_a_sender_jumps_ahead_of_what_it_has_sent(
    slow_disk: BrokerProcess,
) -> None:
    """By a flow with a higher delivery-count: credit is given up, and the next grant is withheld."""
    with RawSocket(slow_disk.port).open() as peer:
        peer.send(raw.attach_sender(0, "classic"))
        assert peer.until(Flow).body.link_credit == 4
        body = raw.message(b"x")
        durable = b"\x00\x53\x70\xc0\x02\x01\x41"
        # Topped up at half; then three unconfirmed of four allowed.
        peer.send(*[raw.transfer(0, number, durable + body, raw=True) for number in range(2)])
        assert peer.until(Flow).body.link_credit == 4
        peer.send(*[raw.transfer(0, number, durable + body, raw=True) for number in range(2, 5)])
        peer.send(raw.flow(handle=0, delivery_count=50, link_credit=0, next_outgoing_id=5))
        waits(
            slow_disk,
            "count-jumped",
            role=SENDER,
            address="classic",
            says=(
                "gave up 1 credit by a flow that names delivery-count 50",
                "5 deliveries are not confirmed",
            ),
        )


def test_a_publisher_does_not_read_what_it_is_told(
    broker: BrokerProcess, open_raw: Callable[..., RawSocket], queue: str
) -> None:
    """Grants wait for the socket: it would not be true that it is its turn; nor that of its other session,
    to which nobody listens any more."""
    peer = open_raw(receive_bytes=4096, channels=2)
    peer.send(raw.attach_sender(0, queue), raw.attach_sender(0, f"{queue}-b", channel=1))
    peer.until(Flow)
    peer.until(Flow)
    peer.socket.settimeout(0.5)
    asks = raw.flow(handle=0, echo=True) * 2_000
    taken = True
    while taken:
        try:
            peer.socket.sendall(asks)
        except TimeoutError:
            taken = False
    waits(broker, "writer-blocked", role=SENDER, address=queue, says=("does not read its socket",))
    waits(
        broker,
        "reader-held",
        role=SENDER,
        address=f"{queue}-b",
        says=("the connection is not read, because session 0 of it does not listen",),
    )
