"""Links that outlive their connections, against the real process: each message passes once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from proton import Link, Terminus

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.delivery import (
    Resume,
    State,
    resume_as_receiver,
    resume_as_sender,
    unsettled_map,
)
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient
from tests.support.rawsocket import RawSocket

MESSAGES = 60
CREDIT = 8
SECOND = performatives.ReceiverSettleMode.SECOND


class Peer:
    """A client of one container, whose connections are reset in the middle of what they do."""

    def __init__(self, broker: BrokerProcess, queue: str, seed: int) -> None:
        self.port, self.queue = broker.port, queue
        self.random = Random(seed)
        self.unsettled: dict[bytes, State] = {}
        self.ids: dict[int, bytes] = {}
        self.socket = self.connect()

    def connect(self) -> RawSocket:
        self.ids = {}
        return RawSocket(self.port).open(container_id=f"kept-{self.queue}")

    def reset(self) -> None:
        self.socket.reset_on_close()
        self.socket.close()

    def attach(self, frame: Any, **terminus: Any) -> dict[bytes, State]:
        self.socket.send(
            frame(0, self.queue, name="mine", rcv_settle_mode=SECOND, unsettled=self.unsettled, **terminus)
        )
        return unsettled_map(self.socket.until(performatives.Attach).body)


def test_a_sender_whose_connections_are_reset_sends_each_message_once(
    broker: BrokerProcess, queue: str
) -> None:
    """And a receiver of that kind takes each once: mode second on both."""
    send_all(Peer(broker, queue, 1))
    taken: list[int] = []
    receiver = Peer(broker, queue, 2)
    while not receive_some(receiver, taken):
        receiver.socket = receiver.connect()
    assert taken == sorted(taken)
    assert taken == list(range(MESSAGES))


def send_all(peer: Peer) -> None:
    """Send all messages over as many connections as it takes."""
    waiting = list(range(MESSAGES))
    while waiting or peer.unsettled:
        theirs = peer.attach(raw.attach_sender, target=performatives.Target(address=peer.queue, timeout=60))
        plan = resume_as_sender(peer.unsettled, theirs)
        waiting = [int.from_bytes(tag, "big") for tag in plan.unknown] + waiting
        frames = []
        for each in plan.resumed:
            known = each.how is Resume.OUTCOME
            frames.append(transfer(peer, each.tag, resume=True, settled=known))
        peer.unsettled = {each.tag: None for each in plan.resumed if each.how is Resume.CONTENT}
        for number in waiting[: peer.random.randint(1, 8)]:
            tag = number.to_bytes(4, "big")
            peer.unsettled[tag] = None
            frames.append(transfer(peer, tag))
        waiting = [number for number in waiting if number.to_bytes(4, "big") not in peer.unsettled]
        peer.socket.send(*frames)
        for _ in range(peer.random.randint(0, 3)):
            settle(peer)
        peer.reset()
        peer.socket = peer.connect()
    peer.reset()


def transfer(peer: Peer, tag: bytes, **fields: Any) -> bytes:
    number, delivery_id = int.from_bytes(tag, "big"), len(peer.ids)
    peer.ids[delivery_id] = tag
    return raw.transfer(0, delivery_id, b"%d" % number, delivery_tag=tag, **fields)


def settle(peer: Peer) -> None:
    if not peer.unsettled:
        return
    told = peer.socket.until(performatives.Disposition).body
    assert told.state == performatives.Accepted()
    for delivery_id in range(told.first, (told.last or told.first) + 1):
        peer.unsettled.pop(peer.ids[delivery_id], None)
        peer.socket.send(raw.disposition(delivery_id, role=False, state=performatives.Accepted()))


def receive_some(peer: Peer, taken: list[int]) -> bool:
    """Take messages over one connection; returns whether all are taken and settled."""
    theirs = peer.attach(raw.attach_receiver, source=performatives.Source(address=peer.queue, timeout=60))
    plan = resume_as_receiver(peer.unsettled, theirs)
    for tag in plan.settled:
        del peer.unsettled[tag]
    peer.socket.send(raw.credit(0, CREDIT))
    # What comes on this connection: never is a frame waited for that does not.
    due = min(CREDIT, len(plan.awaited) + MESSAGES - len(taken))
    told: set[bytes] = set()
    for _ in range(peer.random.randint(1, 2 * CREDIT)):
        if not due and not told & peer.unsettled.keys():
            break
        got = peer.socket.next()
        frame = got.body
        if isinstance(frame, performatives.Disposition):
            for delivery_id in range(frame.first, (frame.last or frame.first) + 1):
                peer.unsettled.pop(peer.ids[delivery_id], None)
        elif isinstance(frame, performatives.Transfer):
            due -= 1
            peer.ids[frame.delivery_id] = frame.delivery_tag
            if frame.settled:
                del peer.unsettled[frame.delivery_tag]
                continue
            taken.append(int(raw.body_of(got.payload)))
            peer.unsettled[frame.delivery_tag] = performatives.Accepted()
            decided = raw.disposition(frame.delivery_id, settled=False, state=performatives.Accepted())
            if peer.random.random() < 0.7:
                peer.socket.send(decided)
                told.add(frame.delivery_tag)
    peer.reset()
    return len(taken) == MESSAGES and not peer.unsettled


def kept(link: Link) -> None:
    """It is to outlive its connection by half a minute."""
    terminus = link.source if link.is_receiver else link.target
    terminus.timeout = 30
    terminus.expiry_policy = Terminus.EXPIRE_WITH_CONNECTION


def test_proton_reads_what_is_granted(client: ProtonClient, queue: str) -> None:
    """It has no maps, so that its links are kept and begin anew: what it left unsettled comes again."""
    sender = client.sender(queue, apply=[kept])
    granted = sender.link.remote_target
    assert (granted.timeout, granted.expiry_policy) == (30, Terminus.EXPIRE_WITH_CONNECTION)
    sender.send("one")
    receiver = client.receiver(queue, apply=[kept])
    granted = receiver.link.remote_source
    assert (granted.timeout, granted.expiry_policy) == (30, Terminus.EXPIRE_WITH_CONNECTION)
    receiver.grant(1)
    (delivery,) = receiver.take(1)
    assert delivery.message.body == "one"
    receiver.close()
    other = client.receiver(queue)
    other.grant(1)
    again = other.take(1)
    assert [each.message.body for each in again] == ["one"]
    other.settle(again)


def test_a_durable_link_sends_each_message_once_though_its_broker_is_killed(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """What the client does not know the outcome of is in the map of the next life, or never came."""
    unsettled: list[bytes] = []
    resumed = 0
    for life in range(3):
        broker = start_broker("--data-dir", str(tmp_path / "data"))
        with closing(RawSocket(broker.port).open()) as peer:
            target = performatives.Target(address="q", durable=2, timeout=600)
            fields: dict[str, Any] = {"target": target, "unsettled": dict.fromkeys(unsettled)}
            peer.send(raw.attach_sender(0, "q", name="mine", rcv_settle_mode=SECOND, **fields))
            attach = peer.until(performatives.Attach).body
            theirs = unsettled_map(attach)
            assert attach.target.durable == 2
            assert all(state == performatives.Accepted() for state in theirs.values())
            resumed += len(theirs.keys() & set(unsettled))
            unanswered = {tag for tag in unsettled if tag not in theirs}
            fresh = [] if life == 2 else [b"%d" % (life * 30 + number) for number in range(30)]
            heard = len(unanswered) + len(fresh[:20])
            sent = [*unsettled, *fresh]
            for number, tag in enumerate(sent):
                known = tag in theirs
                fields = {"delivery_tag": tag, "resume": known, "settled": known}
                peer.send(raw.transfer(0, number, b"" if known else durable(tag), raw=True, **fields))
            while heard > 0:
                told = peer.until(performatives.Disposition).body
                assert told.state == performatives.Accepted()
                heard -= (told.last or told.first) + 1 - told.first
            # It has not noted the last ones that it heard; of others it has not heard.
            unsettled = fresh[15:]
            if life < 2:
                broker.kill()
    assert resumed >= 2 * 5
    assert broker.ask("get-queue", name="q")["message_count"] == 60
    with closing(RawSocket(broker.port).open()) as peer:
        peer.send(raw.attach_receiver(0, "q"), raw.credit(0, 60))
        found = {int(raw.body_of(peer.until(performatives.Transfer).payload)) for _ in range(60)}
        assert found == set(range(60))


def durable(body: bytes) -> bytes:
    return performatives.Header(durable=True).encode() + raw.message(body)
