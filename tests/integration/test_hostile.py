"""Bad input against the real process: the right error each time, and the broker lives on.

Well-behaved clients work meanwhile, and memory stays within a bound that is stated here.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from random import Random

import pytest

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslOutcome,
    Transfer,
)
from amqp10broker.protocols.amqp10.types import Described, ULong
from tests.support.rawframes import (
    AMQP_HEADER,
    SASL_HEADER,
    attach_receiver,
    attach_sender,
    begin,
    body_of,
    credit,
    disposition,
    flow,
    frame,
    login,
    message,
    open_frame,
    transfer,
)
from tests.support.rawprocess import BrokerProcess, RawSocket

pytestmark = pytest.mark.integration

MESSAGE_BYTES_MAX = 1_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One process for all tests: each of them must leave it alive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with BrokerProcess("--max-message-size-bytes", str(MESSAGE_BYTES_MAX)) as process:
            yield process
            assert process.alive
            assert process.stop() == 0, "the broker does not stop in order after all this"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def lives_on(broker: BrokerProcess) -> Iterator[None]:
    """After every test: the process is there, logged no fault of its own, and serves a client."""
    faults = len(broker.faults())
    yield
    assert broker.alive
    round_trip(broker)
    assert broker.faults()[faults:] == []


def round_trip(broker: BrokerProcess, queue: str = "well-behaved") -> None:
    """Publish, consume and settle one message."""
    with RawSocket(broker.port) as client:
        client.open()
        client.send(attach_sender(0, queue), attach_receiver(1, queue))
        client.until(Flow)
        client.send(transfer(0, 0, b"hello"), credit(1, 1))
        assert body_of(client.until(Transfer).payload) == b"hello"
        client.send(disposition(0, state=Accepted()), frame(0, Close()))
        client.until(Close)


# --- malformed frames of every family ----------------------------------------------------------------


def list8(descriptor: int, fields: bytes, count: int) -> bytes:
    """A composite by hand."""
    return bytes((0, 0x53, descriptor, 0xC0, len(fields) + 1, count)) + fields


def described(descriptor: int, value: object) -> bytes:
    return encode(Described(ULong(descriptor), value))


def raw(size: int, doff: int, kind: int, channel: int, body: bytes = b"") -> bytes:
    return size.to_bytes(4, "big") + bytes((doff, kind)) + channel.to_bytes(2, "big") + body


NESTED = b"".join(b"\xd0" + (4 + 9 * left).to_bytes(4, "big") + b"\0\0\0\1" for left in range(2_000, 0, -1))
BOMB = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"
FRAMING = "amqp:connection:framing-error"
DECODE = "amqp:decode-error"

CONNECTION_FAULTS = {
    "frame smaller than its header": (raw(7, 2, 0, 0), FRAMING),
    "frame of size 0": (raw(0, 2, 0, 0), FRAMING),
    "frame larger than max-frame-size": (raw(131_073, 2, 0, 0), FRAMING),
    "frame of 4 GiB": (raw(0xFFFF_FFFF, 2, 0, 0), FRAMING),
    "doff of 1": (raw(8, 1, 0, 0), FRAMING),
    "doff behind the end": (raw(8, 3, 0, 0), FRAMING),
    "SASL frame after open": (raw(8, 2, 1, 0), FRAMING),
    "unknown frame type": (raw(8, 2, 9, 0), FRAMING),
    "body that is not described": (frame(0, b"\x40"), DECODE),
    "unknown performative": (frame(0, b"\x00\x53\x1f\x45"), DECODE),
    "performative of a section": (frame(0, b"\x00\x53\x75\xa0\x00"), DECODE),
    "list cut off": (frame(0, b"\x00\x53\x11\xc0\x20\x04\x40"), DECODE),
    "list longer than its frame": (frame(0, b"\x00\x53\x11\xd0\xff\xff\xff\xff\x00\x00\x00\x04"), DECODE),
    "count larger than the list": (frame(0, list8(0x11, b"\x40\x43\x43\x43", 200)), DECODE),
    "mandatory field missing": (frame(0, list8(0x11, b"\x40\x43", 2)), DECODE),
    "field of a wrong type": (frame(0, list8(0x11, b"\x40\xa1\x01x\x43\x43", 4)), DECODE),
    "too many fields": (frame(0, list8(0x11, b"\x40\x43\x43\x43" + b"\x40" * 9, 13)), DECODE),
    "bytes behind a performative": (frame(0, list8(0x11, b"\x40\x43\x43\x43", 4), b"tail"), DECODE),
    "text that is not UTF-8": (frame(0, list8(0x12, b"\xa1\x02\xff\xfe\x43\x41", 3)), DECODE),
    "array bomb": (frame(0, list8(0x10, b"\xa1\x01x" + b"\x40" * 6 + BOMB, 8)), DECODE),
    "list nested 2000 deep": (
        frame(0, b"\x00\x53\x10\xd0" + (len(NESTED) + 8).to_bytes(4, "big") + b"\0\0\0\1" + NESTED),
        DECODE,
    ),
    "map with an odd count": (
        frame(0, list8(0x10, b"\xa1\x01x" + b"\x40" * 8 + b"\xc1\x02\x01\x40", 10)),
        DECODE,
    ),
    "open twice": (frame(0, Open(container_id="again")), "amqp:illegal-state"),
    "channel without a session": (transfer(0, 0, b"x", channel=9), "amqp:illegal-state"),
    "channel above channel-max": (begin(64), FRAMING),
    "handle above handle-max": (attach_sender(256, "q"), FRAMING),
}


@pytest.mark.parametrize("family", list(CONNECTION_FAULTS))
def test_fault_of_the_connection_is_answered_by_close_with_its_condition(
    broker: BrokerProcess, family: str
) -> None:
    """Close carries the condition, and nothing comes after it."""
    said, condition = CONNECTION_FAULTS[family]
    with RawSocket(broker.port) as client:
        client.open()
        client.send(said)
        close = client.until(Close).body
        assert close.error is not None
        assert close.error.condition == condition, close.error
        assert close.error.description
        client.send(frame(0, Close()))
        client.half_close()
        assert client.rest() == []


SESSION_FAULTS = {
    "begin twice": (begin(0), "amqp:illegal-state"),
    "handle in use": (
        attach_sender(0, "q") + attach_sender(0, "r", name="other"),
        "amqp:session:handle-in-use",
    ),
    "transfer on no link": (transfer(5, 0, b"x"), "amqp:session:unattached-handle"),
    "flow on no link": (credit(5, 1), "amqp:session:unattached-handle"),
    "next-incoming-id ahead": (flow(0, next_incoming_id=5), "amqp:session:window-violation"),
    "transfer on a receiver's handle": (
        attach_receiver(0, "q") + transfer(0, 0, b"x"),
        "amqp:session:errant-link",
    ),
    "first transfer without delivery-id": (
        attach_sender(0, "q") + frame(0, Transfer(handle=0, delivery_tag=b"t"), message(b"x")),
        "amqp:invalid-field",
    ),
}


@pytest.mark.parametrize("family", list(SESSION_FAULTS))
def test_fault_of_a_session_ends_it_and_no_other(broker: BrokerProcess, family: str) -> None:
    """End carries the condition; the connection's other session goes on."""
    said, condition = SESSION_FAULTS[family]
    with RawSocket(broker.port) as client:
        client.open(channels=2)
        client.send(said)
        got = client.until(End)
        assert (got.channel, got.body.error.condition) == (0, condition)
        client.send(frame(0, End()), attach_sender(0, "other", channel=1))
        assert client.until(Attach).channel == 1


LINK_FAULTS = {
    "no delivery-tag": (transfer(0, 0, b"x", delivery_tag=None), "amqp:invalid-field"),
    "delivery-tag of 33 bytes": (transfer(0, 0, b"x", delivery_tag=b"t" * 33), "amqp:invalid-field"),
    "message of garbage": (transfer(0, 0, b"\xde\xad\xbe\xef", raw=True), DECODE),
    "sections out of order": (transfer(0, 0, message(b"x") + described(0x73, []), raw=True), DECODE),
    "message with an array bomb": (transfer(0, 0, b"\x00\x53\x77" + BOMB, raw=True), DECODE),
    "message nested 2000 deep": (transfer(0, 0, b"\x00\x53\x77" + NESTED, raw=True), DECODE),
    "reserved annotations": (
        transfer(0, 0, described(0x72, {"not-a-symbol": 1}) + message(b"x"), raw=True),
        "amqp:invalid-field",
    ),
    "message above max-message-size": (
        b"".join(transfer(0, 0, b"." * 100_000, raw=True, more=True) for _ in range(11)),
        "amqp:link:message-size-exceeded",
    ),
    "continuation of another delivery": (
        transfer(0, 0, b"x", more=True) + transfer(0, 1, b"y", more=True),
        "amqp:invalid-field",
    ),
}


@pytest.mark.parametrize("family", list(LINK_FAULTS))
def test_fault_of_a_link_detaches_it_and_no_other(broker: BrokerProcess, family: str) -> None:
    """Detach carries the condition; another link of the same session goes on."""
    said, condition = LINK_FAULTS[family]
    with RawSocket(broker.port) as client:
        client.open()
        client.send(attach_sender(0, "faulty"), attach_sender(1, "fine"))
        client.until(Flow)
        client.until(Flow)
        client.send(said)
        got = client.until(Detach)
        assert got.body.error is not None
        assert (got.body.handle, got.body.error.condition) == (0, condition), got.body.error
        client.send(frame(0, Detach(handle=0, closed=True)), transfer(1, 77, b"x"))
        assert client.until(Disposition).body.first == 77


def test_transfers_beyond_the_credit_detach_the_link(broker: BrokerProcess) -> None:
    """A publisher that ignores credit is stopped, however fast it is."""
    with RawSocket(broker.port) as client:
        client.open()
        client.send(attach_sender(0, "flooded"))
        client.until(Flow)
        # In one write: half a thousand and more arrive in one read, before any can be confirmed.
        client.send(*[transfer(0, number, b"x") for number in range(3_000)])
        detach = client.until(Detach).body
        assert detach.error.condition == "amqp:link:transfer-limit-exceeded"


BAD_HEADERS = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", SASL_HEADER),
    "AMQP 0-8": (b"AMQP\x01\x01\x08\x00", SASL_HEADER),
    "AMQP 0-9-2": (b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x09\x01"),
    "AMQP 1.0 without SASL": (AMQP_HEADER, SASL_HEADER),
    "TLS": (b"AMQP\x02\x01\x00\x00", SASL_HEADER),
    "version 1.1": (b"AMQP\x03\x01\x01\x00", SASL_HEADER),
}


@pytest.mark.parametrize("family", list(BAD_HEADERS))
def test_wrong_header_is_answered_with_the_supported_one(broker: BrokerProcess, family: str) -> None:
    """ "write a supported protocol header ... and then close the socket" (2.2)."""
    said, answer = BAD_HEADERS[family]
    with RawSocket(broker.port) as client:
        client.send(said)
        assert client.rest() == []
        assert client.cutter.headers == [answer]


BEFORE_OPEN = {
    "AMQP frame where SASL is expected": SASL_HEADER + frame(0, Open(container_id="x")),
    "SASL frame of size 3": SASL_HEADER + raw(3, 2, 1, 0),
    "SASL frame of 4 GiB": SASL_HEADER + raw(0xFFFF_FFFF, 2, 1, 0),
    "empty SASL frame": SASL_HEADER + raw(8, 2, 1, 0),
    "init without mechanism": SASL_HEADER + frame(0, list8(0x41, b"", 0), kind=1),
    "init of garbage": SASL_HEADER + frame(0, b"\xff" * 100, kind=1),
    "outcome from a client": SASL_HEADER + frame(0, SaslOutcome(code=0), kind=1),
    "array bomb in init": SASL_HEADER + frame(0, list8(0x41, BOMB, 1), kind=1),
    "begin before open": login() + AMQP_HEADER + begin(0),
    "open of 9000 bytes": login() + open_frame(hostname="h" * 9_000),
    "wrong header after login": login() + b"AMQP\x00\x02\x00\x00",
}


@pytest.mark.parametrize("family", list(BEFORE_OPEN))
def test_fault_before_open_closes_the_socket(broker: BrokerProcess, family: str) -> None:
    """Before open there is little that may be said; the socket is closed in any case, soon."""
    with RawSocket(broker.port) as client:
        client.send(BEFORE_OPEN[family])
        client.half_close()
        for got in client.rest():
            assert type(got.body) is not Begin


# --- garbage -----------------------------------------------------------------------------------------

PHASES = {
    "before the header": b"",
    "after the SASL header": SASL_HEADER,
    "after login": login(),
    "after the AMQP header": login() + AMQP_HEADER,
    "after open": login() + open_frame(),
    "after begin": login() + open_frame() + begin(0),
    "after attach": login()
    + open_frame()
    + begin(0)
    + attach_sender(0, "garbage")
    + attach_receiver(1, "garbage"),
}


@pytest.mark.parametrize("phase", list(PHASES))
def test_garbage_at_any_phase_ends_with_a_closed_socket(broker: BrokerProcess, phase: str) -> None:
    """Seeded random bytes, alone, as frame bodies and as one changed byte in good frames."""
    random = Random(phase)
    good = [
        begin(1),
        attach_sender(3, "g"),
        credit(1, 5),
        transfer(0, 0, b"x"),
        disposition(0, 9),
        frame(0, End()),
    ]
    for number in range(40):
        if number % 3 == 0:
            said = random.randbytes(random.randint(1, 600))
        elif number % 3 == 1:
            said = b"".join(
                frame(random.randint(0, 2), random.randbytes(random.randint(1, 60))) for _ in range(3)
            )
        else:
            damaged = bytearray(b"".join(random.choices(good, k=4)))
            for _ in range(random.randint(1, 3)):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
            said = bytes(damaged)
        with RawSocket(broker.port) as client:
            client.send(PHASES[phase], said)
            client.half_close()
            client.rest()


# --- many at once ------------------------------------------------------------------------------------

HALF_OPEN, LORIS, GIANT, BOMBS, FLOODERS = 300, 300, 200, 150, 50

# What one connection may hold: a frame that is not whole (max_frame_size), socket reads that wait for
# a session (4 of 64 KiB), answers that its client does not read (256 KiB and one batch), and the
# connection's own objects. A flooder holds all of it; the others a part.
IDLE_BYTES = 64 * 1024
GIANT_BYTES = 2 * 131_072
FLOODER_BYTES = 1_280 * 1024
HELD_BYTES_MAX = (HALF_OPEN + LORIS + BOMBS) * IDLE_BYTES + GIANT * GIANT_BYTES + FLOODERS * FLOODER_BYTES


def test_a_thousand_hostile_connections_hold_memory_and_a_good_client_works_meanwhile(
    broker: BrokerProcess,
) -> None:
    """Half-open handshakes, slow loris, giant frames, array bombs and flooders that never read."""
    before = broker.rss_bytes()
    clients: list[RawSocket] = []
    phases = [said for name, said in PHASES.items() if name not in ("after begin", "after attach")]
    try:
        for number in range(HALF_OPEN):
            clients.append(client := RawSocket(broker.port))
            client.send(phases[number % len(phases)])
        loris = [RawSocket(broker.port) for _ in range(LORIS)]
        clients += loris
        slow = login() + open_frame() + attach_sender(0, "x" * 200)
        for _ in range(GIANT):
            clients.append(client := RawSocket(broker.port))
            client.open(channels=1)
            client.send(raw(131_072, 2, 0, 0, bytes(60_000)))
        for _ in range(BOMBS):
            clients.append(client := RawSocket(broker.port))
            client.open(channels=0)
            client.send(frame(0, list8(0x10, b"\xa1\x01x" + b"\x40" * 6 + BOMB, 8)))
        flood = flow(0, echo=True) * 1_500
        flooders = []
        for _ in range(FLOODERS):
            clients.append(client := RawSocket(broker.port, receive_bytes=4_096))
            client.open(channels=1)
            client.socket.setblocking(False)
            flooders.append(client)
        for turn in range(12):
            for client in loris:
                client.send(slow[turn * 3 : turn * 3 + 3])
            for client in flooders:
                try:
                    client.socket.send(flood)
                except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                    continue
            round_trip(broker, f"meanwhile-{turn}")
        held = broker.rss_bytes() - before
        assert held < HELD_BYTES_MAX, f"{held / 1e6:.0f} MB held, {HELD_BYTES_MAX / 1e6:.0f} MB is the bound"
    finally:
        for client in clients:
            client.close()
    # The memory of those that have gone is used again: a second wave may not add as much once more.
    for number in range(20):
        round_trip(broker, f"afterwards-{number}")


def test_slow_reader_of_large_messages_holds_a_buffer_not_a_backlog() -> None:
    """Fifty consumers that never read, each granted ten thousand: what is held for them is bounded."""
    clients: list[RawSocket] = []
    with BrokerProcess() as fresh:
        try:
            with RawSocket(fresh.port) as publisher:
                publisher.open()
                publisher.send(attach_sender(0, "backlog"))
                publisher.until(Flow)
                for number in range(100):
                    publisher.send(transfer(0, number, b"." * 100_000))
                    publisher.until(Disposition)
            filled = fresh.rss_bytes()
            for _ in range(50):
                clients.append(client := RawSocket(fresh.port, receive_bytes=4_096))
                client.open()
                client.send(attach_receiver(0, "backlog"), credit(0, 10_000))
            round_trip(fresh)
            # The writer's buffer of one session, and the one frame that exceeds it.
            assert fresh.rss_bytes() - filled < 50 * (65_536 + 2 * 100_000 + 65_536)
        finally:
            for client in clients:
                client.close()
