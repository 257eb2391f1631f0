"""Pairs of management links in a session: attaching, credit, drain, order of responses, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.config import Config
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.connection import FRAME_HEADER
from amqp10broker.protocols.amqp10.link import TransferFrame, TransferRun
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.managing import Broker, read_response, request_message
from tests.support.notation import show
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import make_context

UINT_MAX = 2**32 - 1
REQUESTS, RESPONSES = 0, 1


class Peer:
    """A client's session, frame by frame. Handle 0 sends requests, handle 1 takes responses."""

    def __init__(
        self,
        broker: Broker | None = None,
        *,
        user: str = "guest",
        window: int = 1000,
        frame_size_max: int = 4096,
    ) -> None:
        self.broker = broker or Broker()
        self.reply_to = new_reply_to("session")
        self.connection = object()
        context = replace(
            make_context(self.broker.catalog, Config(), self.reply_to, self.connection),
            vhost=self.broker.vhost,
            access=Access(CatalogGrants(self.broker.catalog.users, user), "/"),
            user=user,
        )
        begin = amqp10.Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=UINT_MAX)
        self.service = BrokerSession(0, begin, context, frame_size_max=frame_size_max, alarm=False)
        self.queues_work = True
        self.window = window
        self.sent = 0
        self.responses: list[tuple[str | None, Any]] = []
        self.partial = b""
        self._next_id = 0
        self.take()

    def attach_pair(self, credit: int = 100) -> Peer:
        self.send(attach(REQUESTS), attach(RESPONSES), self.flow(RESPONSES, 0, credit))
        return self

    def flow(self, handle: int | None, dc: int = 0, credit: int | None = None, **fields: Any) -> amqp10.Flow:
        return amqp10.Flow(
            next_incoming_id=0,
            incoming_window=self.window,
            next_outgoing_id=self.sent,
            outgoing_window=UINT_MAX,
            handle=handle,
            delivery_count=None if handle is None else dc,
            link_credit=credit,
            **fields,
        )

    def request(
        self, method: str, to: str, body: object = None, *, handle: int = REQUESTS, **fields: Any
    ) -> TransferFrame:
        number = self._next_id
        self._next_id += 1
        self.sent += 1
        transfer = amqp10.Transfer(
            handle=handle, delivery_id=number, delivery_tag=b"%d" % number, settled=True
        )
        for name, value in fields.items():
            setattr(transfer, name, value)
        return TransferFrame(transfer, request_message(method, to, body, message_id=f"r{number}"))

    def send(self, *frames: object) -> list[str]:
        self.service.receive(frames)
        return self.settle()

    def settle(self) -> list[str]:
        lines: list[str] = []
        moved = True
        while moved:
            self.service.pump(1_000_000)
            lines += self.take()
            moved = False
            for handle, command in self.service.take_commands():
                handle.post(command)
            for box in self.broker.host.queues.values() if self.queues_work else ():
                for reply_to, effects in box.work().items():
                    if reply_to == self.reply_to.id:
                        self.service.on_effects(effects)
                        moved = True
        return lines

    def take(self) -> list[str]:
        data = b"".join(self.service.session.take_output())
        lines: list[str] = []
        pos = 0
        while pos < len(data):
            size, doff, _, _ = FRAME_HEADER.unpack_from(data, pos)
            body = data[pos + doff * 4 : pos + size]
            pos += size
            frame, end = amqp10.decode_composite(body)
            if not isinstance(frame, amqp10.Transfer):
                lines.append(show(frame))
                continue
            assert frame.settled
            self.partial += body[end:]
            if frame.more:
                lines.append("part of a response")
                continue
            properties, content = read_response(self.partial)
            self.partial = b""
            self.responses.append((properties.subject, content))
            lines.append(f"response h={frame.handle} {properties.subject} to {properties.correlation_id}")
        return lines

    def take_responses(self) -> list[tuple[str | None, Any]]:
        responses, self.responses = self.responses, []
        return responses


def attach(
    handle: int,
    *,
    receiver: bool | None = None,
    name: str = "pair",
    terminus: str | None = "me",
    properties: Any = None,
    **fields: Any,
) -> amqp10.Attach:
    """Attach one half: even handles send requests, odd ones take responses."""
    role = bool(handle % 2) if receiver is None else receiver
    frame = amqp10.Attach(
        name=name,
        handle=handle,
        role=role,
        snd_settle_mode=1,
        source=amqp10.Source(address="/management" if role else terminus),
        target=amqp10.Target(address=terminus if role else "/management"),
        initial_delivery_count=None if role else 0,
        properties={Symbol("paired"): True} if properties is None else properties,
    )
    for field, value in fields.items():
        setattr(frame, field, value)
    return frame


ATTACHED_REQUESTS = (
    "ATTACH name=pair h=0 role=receiver snd-settle-mode=settled source=me target=/management "
    "max-message-size=16777216 properties={paired:true}"
)
ATTACHED_RESPONSES = (
    "ATTACH name=pair h=1 role=sender snd-settle-mode=settled source=/management target=me idc=0 "
    "properties={paired:true}"
)


# --- attaching ------------------------------------------------------------------------------------


def test_the_requesting_half_gets_eight_credits() -> None:
    """The broker's attach states the largest request that is accepted."""
    peer = Peer()
    assert peer.send(attach(REQUESTS)) == [
        ATTACHED_REQUESTS,
        "FLOW nii=0 iw=400 noi=0 h=0 dc=0 cr=8",
    ]
    assert peer.send(attach(RESPONSES)) == [ATTACHED_RESPONSES]


@pytest.mark.rabbitmq("management_SUITE", "link_attach_order")
def test_the_halves_may_come_in_any_order() -> None:
    peer = Peer()
    peer.send(attach(RESPONSES), attach(REQUESTS), peer.flow(RESPONSES, 0, 1))
    assert peer.send(peer.request("PUT", "/queues/q", {})) == ["response h=1 201 to r0"]


@pytest.mark.parametrize(
    "properties", [{}, {Symbol("paired"): False}, {Symbol("paired"): "true"}, {Symbol("pair"): True}], ids=str
)
def test_a_half_must_say_that_it_is_paired(properties: Any) -> None:
    lines = Peer().send(attach(REQUESTS, properties=properties or {Symbol("x"): 1}))
    assert lines[0].endswith("target=null")
    assert lines[1:] == [
        (
            "DETACH h=0 closed=true error=amqp:invalid-field "
            "\"Link property 'paired' is not set to boolean value 'true'\""
        ),
    ]


@pytest.mark.parametrize(
    "other",
    [
        attach(2),
        attach(3, receiver=True, terminus="somebody else"),
        attach(3, receiver=True, terminus=None),
    ],
    ids=["same role", "other terminus", "no terminus"],
)
def test_a_half_that_does_not_fit_is_refused(other: amqp10.Attach) -> None:
    """The detach has precondition-failed; the existing half stays."""
    peer = Peer()
    peer.send(attach(REQUESTS))
    lines = peer.send(other)
    assert "=null" in lines[0]
    assert 'error=amqp:precondition-failed "received invalid attach of' in lines[1]
    assert "for management link pair 'pair'" in lines[1]
    peer.send(attach(RESPONSES), peer.flow(RESPONSES, 0, 1))
    assert peer.send(peer.request("PUT", "/queues/q", {})) == ["response h=1 201 to r0"]


def test_rcv_settle_mode_second_is_refused() -> None:
    lines = Peer().send(attach(REQUESTS, rcv_settle_mode=1))
    assert "error=amqp:not-implemented" in lines[1]


# --- requests and responses -----------------------------------------------------------------------


@pytest.mark.rabbitmq("management_SUITE", "all_management_operations", "declare_queues_concurrently")
def test_the_operations_one_after_the_other() -> None:
    peer = Peer().attach_pair()
    steps: list[tuple[str, str, Any, str]] = [
        ("PUT", "/exchanges/x", {"type": "topic"}, "204"),
        ("PUT", "/exchanges/x", {"type": "topic"}, "204"),
        ("PUT", "/queues/q", {}, "201"),
        ("PUT", "/queues/q", {}, "200"),
        ("POST", "/bindings", {"source": "x", "destination_queue": "q", "binding_key": "a.*"}, "204"),
        ("POST", "/bindings", {"source": "x", "destination_queue": "q", "binding_key": "a.*"}, "204"),
        ("POST", "/bindings", {"source": "amq.fanout", "destination_exchange": "x"}, "204"),
        ("GET", "/bindings?src=x&dstq=q&key=a.*", None, "200"),
        ("GET", "/queues/q", None, "200"),
        ("DELETE", "/queues/q/messages", None, "200"),
        ("DELETE", "/bindings/src=x;dstq=q;key=a.%2A;args=", None, "204"),
        ("DELETE", "/bindings/src=x;dstq=q;key=a.%2A;args=", None, "204"),
        ("DELETE", "/exchanges/x", None, "204"),
        ("DELETE", "/exchanges/x", None, "204"),
        ("DELETE", "/queues/q", None, "200"),
        ("DELETE", "/queues/q", None, "200"),
    ]
    for number, (method, to, body, status) in enumerate(steps):
        assert f"response h=1 {status} to r{number}" in peer.send(peer.request(method, to, body))
    assert list(peer.broker.vhost) == []
    assert peer.broker.vhost.topology.find_exchange("x") is None


@pytest.mark.rabbitmq("management_SUITE", "pipeline")
def test_responses_come_in_the_order_of_requests() -> None:
    """pipeline: this holds when one waits for a queue and the next does not."""
    peer = Peer().attach_pair()
    peer.broker.do("declare-queue", name="q")
    peer.queues_work = False
    grant = "FLOW nii=4 iw=396 noi=0 h=0 dc=4 cr=8"
    assert peer.send(
        peer.request("GET", "/queues/q"),
        peer.request("PUT", "/queues/p", {}),
        peer.request("DELETE", "/queues/q"),
        peer.request("GET", "/queues/q"),
    ) == [grant]
    peer.queues_work = True
    assert peer.settle() == [
        "response h=1 200 to r0",
        "response h=1 201 to r1",
        "response h=1 200 to r2",
        "response h=1 404 to r3",
    ]


def test_requests_of_one_read_are_handled_as_one_by_one() -> None:
    peer = Peer().attach_pair()
    frames = [peer.request("PUT", f"/queues/q{number}", {}) for number in range(8)]
    run = TransferRun(REQUESTS, 0, True)
    run.delivery_ids = [frame.performative.delivery_id or 0 for frame in frames]
    run.tags = [frame.performative.delivery_tag or b"" for frame in frames]
    run.payloads = [frame.payload for frame in frames]
    lines = peer.send(run)
    assert lines[:8] == [f"response h=1 201 to r{number}" for number in range(8)]
    assert lines[8:] == ["FLOW nii=8 iw=392 noi=8 h=0 dc=8 cr=8"]


@pytest.mark.rabbitmq("management_SUITE", "multiple_link_pairs")
def test_several_pairs_are_independent() -> None:
    peer = Peer().attach_pair()
    peer.send(attach(2, name="two"), attach(3, name="two"), peer.flow(3, 0, 1))
    assert peer.send(peer.request("PUT", "/queues/q", {}, handle=2)) == ["response h=3 201 to r0"]
    assert peer.send(amqp10.Detach(handle=2, closed=True), amqp10.Detach(handle=3, closed=True)) == [
        "DETACH h=2 closed=true",
        "DETACH h=3 closed=true",
    ]
    assert peer.send(peer.request("GET", "/queues/q")) == ["response h=1 200 to r1"]
    peer.send(attach(2, name="two"), attach(3, name="two"), peer.flow(3, 0, 1))
    assert peer.send(peer.request("GET", "/queues/q", handle=2)) == ["response h=3 200 to r2"]


@pytest.mark.rabbitmq("management_SUITE", "exclusive_queue")
def test_an_exclusive_queue_is_the_connections() -> None:
    broker = Broker()
    mine, other = Peer(broker).attach_pair(), Peer(broker).attach_pair()
    assert mine.send(mine.request("PUT", "/queues/q", {"exclusive": True})) == ["response h=1 201 to r0"]
    assert other.send(other.request("DELETE", "/queues/q")) == ["response h=1 400 to r0"]
    assert list(broker.vhost.owned[mine.connection]) == ["q"]


def test_a_response_over_the_clients_limit_ends_the_half() -> None:
    """The max-message-size of the client's attach is respected; then the pair is half open."""
    peer = Peer()
    peer.send(attach(REQUESTS), attach(RESPONSES, max_message_size=50), peer.flow(RESPONSES, 0, 5))
    lines = peer.send(peer.request("PUT", "/queues/q", {}))
    assert "DETACH h=1 closed=true error=amqp:link:message-size-exceeded" in lines[0]
    lines = peer.send(amqp10.Detach(handle=1, closed=True), peer.request("GET", "/queues/q"))
    assert lines == [
        'END error=amqp:precondition-failed "received transfer on half open management link pair"'
    ]


# --- credit ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("management_SUITE", "drain")
def test_a_request_without_credit_for_its_response_ends_the_session() -> None:
    """drain: credit of one allows one response."""
    peer = Peer().attach_pair(credit=1)
    assert peer.send(peer.request("PUT", "/queues/q", {})) == ["response h=1 201 to r0"]
    assert peer.send(peer.request("GET", "/queues/q")) == [
        (
            "END error=amqp:precondition-failed "
            '"insufficient credit (0) for management link from RabbitMQ to client"'
        ),
    ]


def test_more_requests_than_credit_end_the_session() -> None:
    peer = Peer(window=0).attach_pair()
    lines = peer.send(*[peer.request("GET", "/queues/q") for _ in range(30)])
    assert lines[-1] == (
        "END error=amqp:link:transfer-limit-exceeded "
        '"insufficient credit (0) for management link from client to RabbitMQ"'
    )


def test_credit_is_not_topped_up_while_responses_cannot_be_written() -> None:
    """A client that closes its window and continues to send requests is not served without end."""
    peer = Peer(window=0).attach_pair()
    grants: list[str] = []
    for _ in range(8):
        grants += peer.send(peer.request("GET", "/queues/q"))
    assert grants == ["FLOW nii=4 iw=396 noi=0 h=0 dc=4 cr=8"]


def test_a_request_on_half_a_pair_ends_the_session() -> None:
    peer = Peer()
    peer.send(attach(REQUESTS))
    assert peer.send(peer.request("GET", "/queues/q")) == [
        'END error=amqp:precondition-failed "received transfer on half open management link pair"'
    ]


# --- flow and drain -------------------------------------------------------------------------------


@pytest.mark.rabbitmq("management_SUITE", "drain")
def test_drain_is_answered_with_the_credit_used_up() -> None:
    """drain: dc advanced, cr 0, available 0; then a request finds no credit."""
    peer = Peer().attach_pair(credit=1)
    peer.send(peer.request("PUT", "/queues/q", {}))
    assert peer.send(peer.flow(RESPONSES, 1, 99, drain=True)) == [
        "FLOW nii=1 iw=399 noi=1 h=1 dc=100 cr=0 available=0 drain=true"
    ]
    assert "amqp:precondition-failed" in peer.send(peer.request("GET", "/queues/q"))[0]


@pytest.mark.rabbitmq("management_SUITE", "session_flow_control")
def test_a_flow_stands_behind_the_responses_before_it() -> None:
    """Responses and flows keep their order while the window is closed."""
    peer = Peer(window=0).attach_pair(credit=10)
    assert peer.send(peer.request("GET", "/queues/a"), peer.flow(RESPONSES, 0, 10, drain=True)) == []
    peer.window = 1
    assert peer.send(peer.flow(None)) == [
        "response h=1 404 to r0",
        "FLOW nii=1 iw=399 noi=1 h=1 dc=10 cr=0 available=0 drain=true",
    ]


def test_a_request_behind_a_drain_finds_no_credit() -> None:
    """This holds while the drain waits for its answer: its remaining credit is forfeited."""
    peer = Peer().attach_pair(credit=10)
    peer.broker.do("declare-queue", name="q")
    peer.queues_work = False
    peer.send(peer.request("GET", "/queues/q"), peer.flow(RESPONSES, 0, 10, drain=True))
    assert "amqp:precondition-failed" in peer.send(peer.request("GET", "/queues/p"))[-1]


@pytest.mark.rabbitmq("management_SUITE", "session_flow_control")
def test_responses_respect_the_sessions_window() -> None:
    peer = Peer(window=1).attach_pair()
    lines = peer.send(*[peer.request("GET", f"/queues/{number}") for number in range(3)])
    assert lines == ["response h=1 404 to r0"]
    for number in (1, 2):
        flow = peer.flow(None)
        flow.next_incoming_id = number
        assert peer.send(flow)[0] == f"response h=1 404 to r{number}"


def test_a_drain_that_takes_back_the_credit_of_responses_is_answered_at_once() -> None:
    """They cannot be sent, and frames behind them must not wait forever."""
    peer = Peer(window=0).attach_pair(credit=5)
    peer.send(peer.request("GET", "/queues/q"))
    assert peer.send(peer.flow(RESPONSES, 0, 0, drain=True)) == [
        "FLOW nii=1 iw=399 noi=0 h=1 dc=0 cr=0 available=0 drain=true"
    ]
    peer.window = 10
    assert peer.send(peer.flow(RESPONSES, 0, 1)) == ["response h=1 404 to r0"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 2], ids=["unsettled", "mixed"])
def test_a_request_that_is_not_settled_ends_the_session_whatever_the_link_said(mode: int) -> None:
    """The mode of the attach is echoed, and does not bypass the rule."""
    peer = Peer()
    peer.send(attach(REQUESTS, snd_settle_mode=mode), attach(RESPONSES), peer.flow(RESPONSES, 0, 5))
    assert peer.send(peer.request("GET", "/queues/q", settled=False)) == [
        'END error=amqp:invalid-field "a management request must be sent settled: set settled=true"'
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"settled": False}, "END error=amqp:invalid-field"),
        ({"more": True}, "END error=amqp:not-implemented"),
        ({"rcv_settle_mode": 1}, "END error=amqp:invalid-field"),
    ],
)
def test_a_request_is_one_frame_and_settled_by_its_sender(fields: dict[str, Any], said: str) -> None:
    peer = Peer().attach_pair()
    lines = peer.send(peer.request("GET", "/queues/q", **fields))
    assert lines[-1].startswith(said)
    assert "more=true" in lines[-1] or "more" not in fields


def test_what_is_no_message_ends_the_half() -> None:
    """The detach has decode-error; requests before it are answered."""
    peer = Peer().attach_pair()
    good, bad = peer.request("GET", "/queues/p"), peer.request("GET", "/queues/q")
    bad.payload = b"hello"
    lines = peer.send(good, bad)
    assert "response h=1 404 to r0" in lines
    assert any(line.startswith("DETACH h=0 closed=true error=amqp:decode-error") for line in lines)


def test_a_missing_permission_ends_the_session() -> None:
    """The end has unauthorized-access and the text; requests before it are answered."""
    broker = Broker()
    peer = Peer(broker, user=broker.user("u", configure="^a$")).attach_pair()
    assert peer.send(peer.request("PUT", "/queues/a", {}), peer.request("PUT", "/queues/b", {})) == [
        "response h=1 201 to r0",
        (
            "END error=amqp:unauthorized-access "
            "\"configure access to queue 'b' in vhost '/' refused for user 'u'\""
        ),
    ]


# --- ends -----------------------------------------------------------------------------------------


def test_responses_go_out_after_the_requesting_half_is_gone() -> None:
    peer = Peer().attach_pair()
    peer.broker.do("declare-queue", name="q")
    peer.queues_work = False
    assert peer.send(peer.request("GET", "/queues/q"), amqp10.Detach(handle=0, closed=True)) == [
        "DETACH h=0 closed=true"
    ]
    peer.queues_work = True
    assert peer.settle() == ["response h=1 200 to r0"]


def test_without_the_half_for_responses_answers_of_queues_are_dropped() -> None:
    """The request is carried out without a response; the requesting half keeps its credit."""
    peer = Peer().attach_pair()
    peer.broker.do("declare-queue", name="q")
    peer.queues_work = False
    peer.send(*[peer.request("GET", "/queues/q") for _ in range(3)], amqp10.Detach(handle=1, closed=True))
    peer.queues_work = True
    assert peer.settle() == []
    peer.send(attach(RESPONSES), peer.flow(RESPONSES, 0, 9))
    for _ in range(6):
        assert any(
            line.startswith("response h=1 200") for line in peer.send(peer.request("GET", "/queues/q"))
        )


# --- any order of things --------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(["ask a queue", "ask nobody", "echo", "window", "credit", "queues work", "queues wait"]),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_requests_are_answered_once_and_in_order(steps: list[str]) -> None:
    peer = Peer(window=0).attach_pair(credit=2)
    peer.broker.do("declare-queue", name="q")
    peer.queues_work = False
    asked, granted, limit, request_limit, echoes = 0, 2, 0, 8, 0
    lines: list[str] = []

    def flow(handle: int | None, **fields: Any) -> amqp10.Flow:
        frame = peer.flow(handle, 0, None if handle is None else granted, **fields)
        frame.incoming_window = limit
        return frame

    for step in steps:
        match step:
            case "ask a queue" | "ask nobody":
                if asked >= min(granted, request_limit):
                    continue
                asked += 1
                path = "/queues/q" if step == "ask a queue" else "/queues/other"
                new = peer.send(peer.request("GET", path))
            case "echo":
                echoes += 1
                new = peer.send(flow(RESPONSES, echo=True))
            case "window":
                limit += 1
                new = peer.send(flow(None))
            case "credit":
                granted += 3
                new = peer.send(flow(RESPONSES))
            case _:
                peer.queues_work = step == "queues work"
                new = peer.settle()
        lines += new
        for line in new:
            if " h=0 " in line:
                count, credit = (int(word.partition("=")[2]) for word in line.split()[-2:])
                request_limit = count + credit
    peer.queues_work = True
    limit += 1000
    lines += peer.send(flow(None)) + peer.settle()
    responses = [line.rpartition(" ")[2] for line in lines if line.startswith("response")]
    assert responses == [f"r{number}" for number in range(asked)]
    assert sum("available=0" in line for line in lines) == echoes
    assert not peer.service.session.ended
