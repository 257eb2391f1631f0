"""Bad input against the real process: the right error each time, and the broker lives on.

Well-behaved clients work meanwhile, and memory stays within a bound that is stated here.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from random import Random

import pytest

from amqp10broker.protocols.amqp10.performatives import Accepted, Close, End, Flow, Transfer
from tests.support import rawframes
from tests.support.broker_process import BrokerProcess
from tests.support.rawsocket import RawSocket

MESSAGE_BYTES_MAX = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One process serves all tests; each of them must leave it alive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        folder = tmp_path_factory.mktemp("hostile")
        with BrokerProcess(folder, "--max-message-size-bytes", str(MESSAGE_BYTES_MAX)) as process:
            yield process
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def lives_on(broker: BrokerProcess) -> Iterator[None]:
    """After every test the process runs, has logged no fault of its own, and serves a client."""
    since = len(broker.log)
    yield
    round_trip(broker)
    broker.check_log(since)


def round_trip(broker: BrokerProcess, queue: str = "well-behaved") -> None:
    with RawSocket(broker.port) as client:
        client.open()
        client.send(rawframes.attach_sender(0, queue), rawframes.attach_receiver(1, queue))
        client.until(Flow)
        client.send(rawframes.transfer(0, 0, b"hello"), rawframes.credit(1, 1))
        assert rawframes.body_of(client.until(Transfer).payload) == b"hello"
        client.send(rawframes.disposition(0, state=Accepted()), rawframes.frame(0, Close()))
        client.until(Close)


# --- malformed frames of every family ----------------------------------------------------------------


def list8(descriptor: int, fields: bytes, count: int) -> bytes:
    return bytes((0, 0x53, descriptor, 0xC0, len(fields) + 1, count)) + fields


def raw(size: int, doff: int, kind: int, channel: int, body: bytes = b"") -> bytes:
    return size.to_bytes(4, "big") + bytes((doff, kind)) + channel.to_bytes(2, "big") + body


BOMB = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"
# --- clients that vanish -----------------------------------------------------------------------------


def test_connections_that_vanish_at_any_point_leave_nothing_behind(broker: BrokerProcess) -> None:
    """The client resets or closes after any prefix of a valid conversation."""
    conversation = b"".join(
        [
            rawframes.login(),
            rawframes.open_frame(),
            rawframes.begin(),
            rawframes.attach_sender(0, "vanishing"),
            rawframes.transfer(0, 0, b"x" * 100, settled=True, more=True),
            rawframes.attach_receiver(1, "vanishing"),
            rawframes.credit(1, 10),
        ]
    )
    for at, cut in enumerate(range(0, len(conversation), 23)):
        with RawSocket(broker.port) as client:
            if at % 2:
                client.reset_on_close()
            client.send(conversation[:cut])
    broker.wait_until(lambda: not broker.status()["connections"], "the end of all those connections")


# --- garbage -----------------------------------------------------------------------------------------

PHASES = {
    "before the header": b"",
    "after the SASL header": rawframes.SASL_HEADER,
    "after login": rawframes.login(),
    "after the AMQP header": rawframes.login() + rawframes.AMQP_HEADER,
    "after open": rawframes.login() + rawframes.open_frame(),
    "after begin": rawframes.login() + rawframes.open_frame() + rawframes.begin(0),
    "after attach": rawframes.login()
    + rawframes.open_frame()
    + rawframes.begin(0)
    + rawframes.attach_sender(0, "garbage")
    + rawframes.attach_receiver(1, "garbage"),
}


@pytest.mark.parametrize("phase", list(PHASES))
def test_garbage_at_any_phase_ends_with_a_closed_socket(broker: BrokerProcess, phase: str) -> None:
    """Seeded random bytes come alone, as frame bodies, and as one changed byte in valid frames."""
    random = Random(phase)
    good = [
        rawframes.begin(1),
        rawframes.attach_sender(3, "g"),
        rawframes.credit(1, 5),
        rawframes.transfer(0, 0, b"x"),
        rawframes.disposition(0, 9),
        rawframes.frame(0, End()),
    ]
    for number in range(40):
        if number % 3 == 0:
            said = random.randbytes(random.randint(1, 600))
        elif number % 3 == 1:
            said = b"".join(
                rawframes.frame(random.randint(0, 2), random.randbytes(random.randint(1, 60)))
                for _ in range(3)
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
    """They are half-open handshakes, slow loris, giant frames, array bombs and floods without reads."""
    before = broker.resident_bytes
    clients: list[RawSocket] = []
    phases = [said for name, said in PHASES.items() if name not in ("after begin", "after attach")]
    try:
        for number in range(HALF_OPEN):
            clients.append(client := RawSocket(broker.port))
            client.send(phases[number % len(phases)])
        loris = [RawSocket(broker.port) for _ in range(LORIS)]
        clients += loris
        slow = rawframes.login() + rawframes.open_frame() + rawframes.attach_sender(0, "x" * 200)
        for _ in range(GIANT):
            clients.append(client := RawSocket(broker.port))
            client.open(channels=1)
            client.send(raw(131_072, 2, 0, 0, bytes(60_000)))
        for _ in range(BOMBS):
            clients.append(client := RawSocket(broker.port))
            client.open(channels=0)
            client.send(rawframes.frame(0, list8(0x10, b"\xa1\x01x" + b"\x40" * 6 + BOMB, 8)))
        flood = rawframes.flow(0, echo=True) * 1_500
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
        held = broker.resident_bytes - before
        assert held < HELD_BYTES_MAX, f"{held / 1e6:.0f} MB held, {HELD_BYTES_MAX / 1e6:.0f} MB is the bound"
    finally:
        for client in clients:
            client.close()
    # The memory of those that have gone is used again: a second wave may not add as much once more.
    for number in range(20):
        round_trip(broker, f"afterwards-{number}")
