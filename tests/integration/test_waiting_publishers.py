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
def slow_queue(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a queue that takes for ever for what is published; it is killed in the end."""
    delay = f"slow={SYNC_MS}"
    broker = BrokerProcess(tmp_path, "--test-mode", "--confirm-delay", delay, "--max-link-credit", "4")
    yield broker
    broker.kill()
    broker.check_log()


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


def test_it_is_the_turn_of_a_client_that_has_sent_nothing(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """That is no wait."""
    client.sender(queue)
    waits(
        broker,
        None,
        role=SENDER,
        address=queue,
        says=("its turn: 170 credits, window open (400 frames)", "it has sent nothing yet"),
    )


def test_it_is_the_turn_of_a_client_whose_message_was_accepted(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """With the last outcome."""
    client.sender(queue).send("1")
    waits(broker, None, role=SENDER, address=queue, says=("its turn: 169 credits", "last outcome: accepted"))


# --- credit is withheld ---------------------------------------------------------------------------


def test_a_queue_has_not_come_to_what_was_published(slow_queue: BrokerProcess) -> None:
    """A queue that does not follow holds back whoever publishes to it; and a consumer hears nothing of it."""
    client = ProtonClient(slow_queue.port)
    sender = client.sender("slow")
    sender.transfer(Message(body="first"), settled=True)
    client.flush()
    for _ in range(10):
        sender.transfer_now(Message(body="x"), settled=True)
    use_up_credit(slow_queue, client, "slow")
    waits(
        slow_queue,
        "credit-withheld",
        role=SENDER,
        address="slow",
        says=("are not confirmed by queue 'slow', max_link_credit is 4; queue 'slow' has not come to them",),
    )
    client.receiver("slow", credit=10)
    waits(
        slow_queue,
        "queue-credit-in-flight",
        address="slow",
        says=("10 messages were asked of queue 'slow': no answer yet",),
    )


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


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_consumer_waits_for_the_sync(slow_disk: BrokerProcess, kind: str) -> None:
    """What was published is in the queue, and is handed out when the disk has it."""
    client = ProtonClient(slow_disk.port)
    client.receiver(kind, credit=10)
    publish(client, kind, 2)
    code = {"quorum": "queue-credit-in-flight", "stream": "messages-not-synced"}[kind]
    waits(slow_disk, code, address=kind, says=("a sync has been running for",))


def test_a_drain_waits_for_the_sync(slow_disk: BrokerProcess) -> None:
    """A quorum queue answers when its record is on the disk."""
    with RawSocket(slow_disk.port).open() as peer:
        peer.send(raw.attach_receiver(0, "quorum"), raw.credit(0, 5, drain=True))
        waits(
            slow_disk,
            "draining",
            address="quorum",
            says=("the client asked to drain 5 credits", "a sync has been running for"),
        )


# --- the whole session is held --------------------------------------------------------------------


def test_an_alarm_is_on(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Which one."""
    client.sender(queue).send("1")
    broker.ask("alarm", name="memory", on=True)
    try:
        waits(broker, "blocked-by-alarm", role=SENDER, address=queue, says=("the alarm of memory is on",))
    finally:
        broker.ask("alarm", name="memory", on=False)
    waits(broker, None, role=SENDER, address=queue)


# --- what clients do to themselves ----------------------------------------------------------------


def test_a_delivery_is_not_finished(
    broker: BrokerProcess, open_raw: Callable[..., RawSocket], queue: str
) -> None:
    """The first part has come, and then nothing."""
    peer = open_raw()
    peer.send(raw.attach_sender(0, queue))
    peer.until(Flow)
    peer.send(raw.transfer(0, 0, b"part of", more=True, raw=True))
    waits(
        broker,
        "delivery-unfinished",
        role=SENDER,
        address=queue,
        says=("7 bytes of delivery 0 have come and not its end", "the last part came"),
    )
    peer.send(raw.transfer(0, 0, b"", raw=True, aborted=True))
    waits(broker, None, role=SENDER, address=queue)


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
