"""A client's session engine and a broker's session with its queues, back to back, without tasks.

Everything that could be under way in a running broker is a list here: bytes in both directions,
letters to queues, letters from queues. The test says what moves next.
"""

from __future__ import annotations

from amqp10broker.config import Config, FlowSettings
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.connection import FrameReader
from amqp10broker.protocols.amqp10.delivery import DeliveryBatch
from amqp10broker.protocols.amqp10.link import (
    DeliveriesReceived,
    DeliveriesSent,
    DeliveriesSettled,
    DeliveriesUpdated,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    ReceiverLink,
    SenderLink,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.serial import MASK, diff
from amqp10broker.queues.commands import Deliver, Effect
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.queue_handles import QueueHost
from tests.support.rawframes import FrameCutter, Got
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import make_catalog, make_context

FRAME_BYTES = 512
BATCH_BYTES = 4_000


class SenderWatch:
    """One direction of a session's transfers, checked against the flows the sender has received."""

    def __init__(self, window: int) -> None:
        self.window_limit = window
        self.frames = 0
        self.limits: dict[str, int] = {}
        self.limits_of_turn: dict[str, list[int]] = {}
        self.counts: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.peer_names: dict[int, str] = {}
        self.under_way: dict[str, bytes] = {}
        self.whole: list[tuple[str, amqp10.Transfer, bytes]] = []
        self.flows: dict[str, list[amqp10.Flow]] = {}

    def told(self, got: Got) -> None:
        body = got.body
        if type(body) is amqp10.Attach:
            self.peer_names[body.handle] = body.name
        elif type(body) is amqp10.Flow:
            self.window_limit = ((body.next_incoming_id or 0) + body.incoming_window) & MASK
            if body.handle is not None and body.link_credit is not None:
                name = self.peer_names[body.handle]
                self.limits_of_turn.setdefault(name, [self.limits.get(name, 0)])
                self.limits[name] = ((body.delivery_count or 0) + body.link_credit) & MASK
                self.limits_of_turn[name].append(self.limits[name])

    def says(self, got: Got) -> None:
        body = got.body
        if type(body) is amqp10.Attach:
            self.names[body.handle] = body.name
            if not body.role:
                self.counts[body.name] = body.initial_delivery_count or 0
                self.limits.setdefault(body.name, self.counts[body.name])
                self.flows[body.name] = []
        elif type(body) is amqp10.Detach:
            self.under_way.pop(self.names[body.handle], None)
        elif type(body) is amqp10.Flow:
            self._says_flow(body)
        elif type(body) is amqp10.Transfer:
            self._says_transfer(body, got.payload)
        if type(body) in (amqp10.Transfer, amqp10.Flow):
            assert body.__class__ is amqp10.Transfer or body.next_outgoing_id == self.frames & MASK

    def _says_flow(self, flow: amqp10.Flow) -> None:
        if flow.handle is None:
            return
        name = self.names[flow.handle]
        if name not in self.counts:
            return
        assert name not in self.under_way, "a flow between the frames of a delivery of its own link"
        assert diff(flow.delivery_count or 0, self.counts[name]) >= 0, "delivery-count went back"
        if flow.drain and flow.link_credit == 0:
            self.counts[name] = flow.delivery_count or 0
        assert flow.delivery_count == self.counts[name]
        # Written when one of this turn's flows had been received, and not necessarily the last.
        limits = self.limits_of_turn.get(name, [self.limits[name]])
        assert flow.link_credit in [max(0, diff(limit, self.counts[name])) for limit in limits]
        self.flows[name].append(flow)

    def _says_transfer(self, transfer: amqp10.Transfer, payload: bytes) -> None:
        self.frames += 1
        assert diff(self.window_limit, self.frames) >= 0, "a transfer outside the peer's incoming-window"
        name = self.names[transfer.handle]
        if name not in self.under_way:
            assert transfer.delivery_id is not None
            self.counts[name] = (self.counts[name] + 1) & MASK
            assert diff(self.limits[name], self.counts[name]) >= 0, "a delivery without credit"
            self.under_way[name] = b""
        self.under_way[name] += payload
        if not transfer.more:
            self.whole.append((name, transfer, self.under_way.pop(name)))


class Pair:
    """The two ends, what is between them, and watches on both directions."""

    def __init__(self, *, window: int, flow: FlowSettings) -> None:
        self.config = Config(flow=flow, container_id="broker")
        self.host = QueueHost()
        self.catalog = make_catalog(self.host)
        self.reply_to = new_reply_to("pair")
        self.up = b""
        self.down = b""
        self.inbox: list[list[Effect]] = []
        self.broker_reader = FrameReader()
        self.client_reader = FrameReader()
        self.client = Session(0, incoming_window=window, handle_max=255, frame_size_max=FRAME_BYTES)
        self.client.begin()
        (begin,) = self.client.take_output()
        (got,) = FrameCutter().feed(begin)
        context = make_context(self.catalog, self.config, self.reply_to, self)
        self.broker = BrokerSession(0, got.body, context, frame_size_max=FRAME_BYTES, alarm=False)
        (answer,) = FrameCutter().feed(b"".join(self.broker.session.take_output()))
        assert type(answer.body) is amqp10.Begin
        self.client.receive_begin(0, answer.body)
        self.down_watch = SenderWatch(window)
        self.up_watch = SenderWatch(flow.max_incoming_window)
        self._cutters = [FrameCutter() for _ in range(4)]
        self.received: list[DeliveriesReceived] = []
        self.updated: list[DeliveriesUpdated] = []
        self.detached: list[LinkDetached] = []

    # --- the client's end -------------------------------------------------------------------------

    def write_up(self) -> None:
        """Write the client's pending frames, transfers as credit and window allow."""
        while True:
            _, events = self.client.pump(BATCH_BYTES)
            if not events:
                break
        out = b"".join(self.client.take_output())
        for got in self._cutters[0].feed(out):
            self.up_watch.says(got)
        self.up_watch.limits_of_turn.clear()
        self.up += out

    def carry_down(self, size: int) -> None:
        data, self.down = self.down[:size], self.down[size:]
        for got in self._cutters[1].feed(data):
            assert type(got.body) is not amqp10.End, f"the broker ended the session: {got.body}"
            assert type(got.body) is not amqp10.Detach or got.body.error is None, (
                f"the broker detached: {got.body}"
            )
            self.up_watch.told(got)
        for _, items in self.client_reader.read(data):
            for event in self.client.receive(items):
                match event:
                    case DeliveriesReceived():
                        self.received.append(event)
                        self.client.inbound.finish(event.link, len(event.delivery_ids))
                    case DeliveriesUpdated():
                        self.updated.append(event)
                    case LinkDetached():
                        assert event.fault is None, event
                        self.detached.append(event)
                    case LinkAttached() | LinkFlowed() | DeliveriesSettled() | DeliveriesSent():
                        pass
                    case _:
                        raise AssertionError(event)
        self.write_up()

    # --- the broker's end -------------------------------------------------------------------------

    def carry_up(self, size: int) -> None:
        """Pass bytes to the broker's session as letters; `wake` ends its turn."""
        data, self.up = self.up[:size], self.up[size:]
        for got in self._cutters[2].feed(data):
            self.down_watch.told(got)
        for _, items in self.broker_reader.read(data):
            self.broker.receive(items)

    def take_letter(self) -> None:
        """Pass one letter of a queue to the broker's session."""
        if self.inbox:
            self.broker.on_effects(self.inbox.pop(0))

    def wake(self, budget_bytes: int) -> None:
        """End the session's turn: pump, write, post."""
        self.broker.pump(budget_bytes)
        session = self.broker.session
        if budget_bytes >= 1 << 30 and session.outgoing.remote_incoming_window:
            self._assert_nothing_stalls()
        out = b"".join(session.take_output())
        for got in self._cutters[3].feed(out):
            self.down_watch.says(got)
        self.down_watch.limits_of_turn.clear()
        self.down += out
        for handle, command in self.broker.take_commands():
            handle.post(command)

    def _assert_nothing_stalls(self) -> None:
        for link in self.broker.session.links:
            if type(link) is ReceiverLink:
                continue
            assert link.partial is None, "half a message waits though window and writer are open"
            assert not (pending_deliveries(link) and link.credit.link_credit), (
                "deliveries wait though credit, window and writer allow them"
            )

    def run_queue(self, name: str, commands: int) -> None:
        """Apply the first of a queue's commands; its effects go to the session."""
        effects = self.host.queues[name].work(commands)
        if self.reply_to.id in effects:
            self.inbox.append(effects[self.reply_to.id])

    @property
    def busy(self) -> bool:
        return bool(
            self.up or self.down or self.inbox or any(queue.commands for queue in self.host.queues.values())
        )

    def settle_down(self) -> None:
        self.wake(1 << 30)
        self.write_up()
        for _ in range(100_000):
            if not self.busy:
                return
            self.carry_up(1 << 20)
            self.wake(1 << 30)
            for name in self.host.queues:
                self.run_queue(name, 1000)
            while self.inbox:
                self.take_letter()
            self.wake(1 << 30)
            self.carry_down(1 << 20)
        raise AssertionError("the pair does not come to rest")

    def outside(self, link_name: str) -> int:
        """Return the deliveries that left the queue for a link and are not written."""
        consumer = next((each for each in self.broker.consumers if each.link.name == link_name), None)
        if consumer is None:
            return 0
        coming = sum(
            len(effect.keys)
            for batch in self.inbox
            for effect in batch
            if type(effect) is Deliver and effect.consumer == consumer.ref
        )
        return coming + consumer.credit.waiting


def settle_mode(settled: bool) -> int:
    """Return the attach field for a link that is, or is not, sent settled."""
    return int(amqp10.SenderSettleMode.SETTLED if settled else amqp10.SenderSettleMode.UNSETTLED)


def pending_deliveries(link: SenderLink) -> int:
    """Return how many deliveries were passed to it and not begun."""
    return sum(entry.left() for entry in link.pending if isinstance(entry, DeliveryBatch))
