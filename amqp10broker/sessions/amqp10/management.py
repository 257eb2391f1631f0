"""The management node's links in one session: pairs of links, requests in, responses out, in order.

A client that manages attaches two links of one name: a sender to ``/management`` for requests and a receiver
from it for responses. `operations.amqp_node` handles the requests.

A request uses up response credit when it comes. A request without credit ends the session, so that responses
never accumulate here. A request is complete when its response has been written, so that a client that closes
its window runs out of credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import PermissionDenied
from amqp10broker.metadata.plan import Decided
from amqp10broker.operations.amqp_node import ADDRESS, handle_request
from amqp10broker.operations.node import Caller, Steps, Wait
from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition, DecodeError
from amqp10broker.protocols.amqp10.link import DeliveriesReceived, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Flow,
    ReceiverSettleMode,
    SenderSettleMode,
    Source,
    Target,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import Answer, RequestRef
from amqp10broker.sessions.amqp10.attach import KEPT
from amqp10broker.sessions.amqp10.consumer import ANSWERS_OWED_MAX, TXN_ID
from amqp10broker.sessions.amqp10.link_owner import LinkOwner, LinkOwners
from amqp10broker.sessions.context import ToQueue

REQUEST_CREDIT: Final = 8

_PAIRED: Final = Symbol("paired")


@dataclass(eq=False, slots=True)
class Reply:
    """One entry in the ordered output of a pair: a response, or the answer to a flow."""

    request_link: ReceiverLink | None
    payload: bytes | None = None
    done: bool = False

    @property
    def ready(self) -> bool:
        return self.request_link is None or self.payload is not None


@dataclass(eq=False, slots=True)
class Pair(LinkOwner):
    """Two links of one name. It owns the half on which responses are sent. `handed`: the responses that the
    session has and has not written, as the links of their requests.
    """

    _node: ManagementLinks
    _session: Session
    name: str
    terminus: object
    requests: ReceiverLink | None = None
    responses: SenderLink | None = None
    waiting: deque[Reply] = field(default_factory=deque)
    handed: deque[ReceiverLink] = field(default_factory=deque)
    flows: deque[Reply] = field(default_factory=deque)
    _next_key: int = 0

    def response_credit(self) -> int:
        assert self.responses is not None
        credit = self.responses.credit
        if credit.drain:
            return 0  # a drain forfeits the remaining credit as soon as everything before it is written
        owed = len(self.handed) + sum(reply.request_link is not None for reply in self.waiting)
        return max(0, credit.link_credit - owed)

    def on_flow(self, flow: Flow) -> None:
        if flow.properties and flow.properties.get(TXN_ID) is not None:
            text = "flow names a transaction (txn-id): messages of this link cannot be acquired in one"
            raise AmqpLinkError(Condition.NOT_IMPLEMENTED, text)
        if flow.link_credit is None and not flow.echo:
            return
        assert self.responses is not None
        answered = flow.echo or self.responses.credit.drain
        if answered and len(self.waiting) + len(self.flows) < ANSWERS_OWED_MAX:
            self.waiting.append(Reply(None))
        self.hand_over()

    def hand_over(self) -> None:
        """Pass replies to the session in order, up to the first that is not ready."""
        link = self.responses
        while link is not None and self.waiting and self.waiting[0].ready:
            reply = self.waiting.popleft()
            if reply.request_link is None:
                if self.handed or link.partial is not None:
                    self.flows.append(reply)
                    self._session.outbound.queue_marker(link, reply)
                else:
                    self.act_on(reply)
            else:
                assert reply.payload is not None
                self.handed.append(reply.request_link)
                self._session.outbound.queue_deliveries(link, [self._next_key], [(b"", reply.payload)])
                self._next_key += 1
        self._answer_stuck()

    def on_sent(self, deliveries: int) -> None:
        for _ in range(deliveries):
            self.finish(self.handed.popleft())
        self._answer_stuck()

    def act_on(self, marker: object) -> None:
        """Send the state of the half for responses; nothing is ever available beyond what was requested."""
        assert isinstance(marker, Reply)
        if marker.done:
            return
        marker.done = True
        link = self.responses
        assert link is not None
        if link.credit.drain:
            self._session.drained(link, available=0)
        else:
            self._session.send_flow(link, available=0)

    def _answer_stuck(self) -> None:
        # These flows wait behind responses that cannot be sent, because the client has withdrawn its credit.
        while self.flows and self.flows[0].done:
            self.flows.popleft()
        link = self.responses
        if link is None or link.credit.link_credit > 0 or link.partial is not None or not self.handed:
            return
        while self.flows:
            self.act_on(self.flows.popleft())

    def finish(self, link: ReceiverLink | None) -> None:
        if link is not None and link.attached:
            self._session.inbound.finish(link, 1)

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        self._node.on_responses_detached(self)


@dataclass(eq=False, slots=True)
class RequestEnd(LinkOwner):
    """The owner of the half on which requests are received."""

    _node: ManagementLinks
    pair: Pair

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        try:
            if not event.settled:
                raise AmqpSessionError(
                    Condition.INVALID_FIELD, "a management request must be sent settled: set settled=true"
                )
            for payload in event.payloads:
                self._node.on_request(self.pair, event.link, payload)
        except AmqpSessionError:
            # Responses to requests before the fault are sent before the end.
            self._node.write(event.link.max_message_size)
            raise

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        self.pair.requests = None
        self._node.forget_if_gone(self.pair)


@dataclass(eq=False, slots=True)
class ManagementLinks:
    """All management links of a session."""

    _session: Session
    _owners: LinkOwners
    _caller: Callable[[], Caller]
    _to_queue: ToQueue
    _message_bytes_max: Callable[[], int]
    write: Callable[[int], object]
    _pairs: dict[str, Pair] = field(default_factory=dict)
    _asked: dict[RequestRef, tuple[Pair, Reply, Steps[bytes]]] = field(default_factory=dict)
    # The request that is not decided yet, and those behind it, which must see its changes.
    undecided: RequestRef | None = None
    _held: deque[tuple[Pair, Reply, bytes]] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        return bool(self._asked) or any(pair.handed for pair in self._pairs.values())

    # --- links ------------------------------------------------------------------------------------

    def attach(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        """Accept one half of a pair."""
        _check(attach)
        terminus = getattr(attach.target if attach.role else attach.source, "address", None)
        pair = self._pairs.get(link.name)
        if pair is None:
            pair = Pair(self, self._session, link.name, terminus)
        elif pair.terminus != terminus or (pair.responses if attach.role else pair.requests) is not None:
            half = "receiver" if attach.role else "sender"
            raise AmqpLinkError(
                Condition.PRECONDITION_FAILED,
                f"received invalid attach of {half} with handle {attach.handle} and terminus {terminus!r} "
                f"for management link pair '{link.name}': a pair is one sender and one receiver of the same "
                f"name, whose other terminus is the same, here {pair.terminus!r}",
            )
        self._session.links.accept(
            link,
            source=Source(address=ADDRESS, **KEPT) if attach.role else attach.source,
            target=attach.target if attach.role else Target(address=ADDRESS, **KEPT),
            snd_settle_mode=SenderSettleMode.SETTLED if attach.role else attach.snd_settle_mode,
            rcv_settle_mode=ReceiverSettleMode.FIRST,
            credit_limit=0 if attach.role else REQUEST_CREDIT,
            max_message_size=(attach.max_message_size or 0) if attach.role else self._message_bytes_max(),
            properties={_PAIRED: True},
        )
        self._pairs[link.name] = pair
        if isinstance(link, SenderLink):
            pair.responses = link
            self._owners[link] = pair
        else:
            pair.requests = link
            link.manages = True
            self._owners[link] = RequestEnd(self, pair)

    def on_responses_detached(self, pair: Pair) -> None:
        """Complete the unanswered requests of a pair. Those that are held for a decision are not carried out:
        otherwise a client could attach again and again, and have ever more requests held.
        """
        pair.responses = None
        self._held = deque(held for held in self._held if held[0] is not pair)
        for reply in pair.waiting:
            pair.finish(reply.request_link)
        for request_link in pair.handed:
            pair.finish(request_link)
        pair.waiting.clear()
        pair.handed.clear()
        pair.flows.clear()
        self.forget_if_gone(pair)

    def forget_if_gone(self, pair: Pair) -> None:
        if pair.requests is None and pair.responses is None:
            self._pairs.pop(pair.name, None)

    def close(self) -> None:
        self._pairs.clear()
        self._asked.clear()
        self._held.clear()

    # --- requests ---------------------------------------------------------------------------------

    def on_request(self, pair: Pair, link: ReceiverLink, payload: bytes) -> None:
        if pair.responses is None:
            raise AmqpSessionError(
                Condition.PRECONDITION_FAILED, "received transfer on half open management link pair"
            )
        credit = pair.response_credit()
        if credit <= 0:
            raise AmqpSessionError(
                Condition.PRECONDITION_FAILED,
                f"insufficient credit ({credit}) for management link from RabbitMQ to client",
            )
        reply = Reply(link)
        pair.waiting.append(reply)
        if self.undecided is not None:
            self._held.append((pair, reply, payload))
            return
        try:
            self._advance(pair, reply, handle_request(self._caller(), payload), None)
        except DecodeError as error:
            pair.waiting.pop()
            raise AmqpLinkError(Condition.DECODE_ERROR, error.description) from error

    def _advance(self, pair: Pair, reply: Reply, steps: Steps[bytes], heard: Decided | Answer | None) -> None:
        try:
            wait = steps.send(heard)
        except StopIteration as done:
            reply.payload = done.value
        except PermissionDenied as error:
            raise AmqpSessionError(Condition.UNAUTHORIZED_ACCESS, error.description) from error
        else:
            assert isinstance(wait, Wait), "the caller has no node"
            self._asked[wait.ref] = (pair, reply, steps)
            if wait.queue is None:
                self.undecided = wait.ref
            else:
                assert wait.command is not None
                self._to_queue((wait.queue, wait.command))
            return
        pair.hand_over()

    def on_decided(self, decided: Decided) -> None:
        """Carry out the requests that were held behind the decided one."""
        asked = self._asked.pop(decided.ref, None)
        if asked is None:
            return
        self.undecided = None
        self._advance(*asked, decided)
        while self._held and self.undecided is None:
            pair, reply, payload = self._held.popleft()
            try:
                self._advance(pair, reply, handle_request(self._caller(), payload), None)
            except DecodeError as error:
                raise AmqpSessionError(Condition.DECODE_ERROR, error.description) from error

    def on_answer(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.request, None)
        if asked is not None:
            self._advance(*asked, answer)


def is_management(attach: Attach) -> bool:
    terminus = attach.source if attach.role else attach.target
    return isinstance(terminus, Source | Target) and terminus.address == ADDRESS


def _check(attach: Attach) -> None:
    if (attach.properties or {}).get(_PAIRED) is not True:
        raise AmqpLinkError(
            Condition.INVALID_FIELD, "Link property 'paired' is not set to boolean value 'true'"
        )
    if attach.rcv_settle_mode == ReceiverSettleMode.SECOND:
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED, "rcv-settle-mode second not supported: responses are sent settled"
        )
