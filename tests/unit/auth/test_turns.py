"""Whose password is verified next: fair by address and by name, bounded, shared by who says the same."""

from __future__ import annotations

import pytest

from amqp10broker.auth import login as module
from amqp10broker.auth.login import WAITING_MAX, WAITING_PER_ADDRESS_MAX, LoginQueue, Turn, turn_address


class Line:
    """Turns whose work is a sentence, and which of them were refused."""

    def __init__(self) -> None:
        self.turns: LoginQueue[str] = LoginQueue()
        self.refused: list[str] = []
        self._keys = 0

    def join(self, address: str, name: str, *, key: object = None) -> Turn[str]:
        """Wait; each with a password of its own unless a key is given."""
        self._keys += 1
        key = self._keys if key is None else key
        work = f"{name} from {address}"
        turn, refused = self.turns.join(work, address=address, name=name, key=key)
        if refused is not None:
            assert refused.refused
            self.refused.append(refused.work)
        return turn

    def take(self) -> str:
        turn = self.turns.take()
        assert turn is not None
        self.turns.done(turn)
        return turn.work

    def take_all(self) -> list[str]:
        return [self.take() for _ in range(len(self.turns))]


@pytest.fixture
def line() -> Line:
    return Line()


def test_an_address_has_one_verification_at_a_time(line: Line) -> None:
    """Whoever sends many leaves a processor to others, whichever way the turns go round."""
    for number in range(10):
        line.join("storm", f"guess{number}")
    running = line.turns.take()
    assert running is not None
    assert [line.turns.take(), line.turns.take()] == [None, None]
    line.join("home", "guess3")
    assert line.take() == "guess3 from home"
    assert line.turns.take() is None
    line.turns.leave(running)  # the client is gone, and its password is still being verified
    assert line.turns.take() is None
    line.turns.done(running)
    assert line.turns.take() is not None


@pytest.mark.parametrize("names", [1, 200], ids=["one name", "many names"])
def test_a_storm_from_one_address_delays_another_by_three_turns_at_most(line: Line, names: int) -> None:
    """Every other turn goes round the addresses, of which there are two; also when it comes again."""
    for number in range(200):
        line.join("storm", f"guess{number % names}")
    for _ in range(20):
        line.join("home", "ann")
        assert "ann from home" in [line.take() for _ in range(4)]


def test_a_storm_on_one_name_from_everywhere_delays_other_names_by_three_turns_at_most(line: Line) -> None:
    """A thousand addresses that try one name do not hold up who logs in as somebody else."""
    for number in range(1000):
        line.join(f"bot{number}", "admin")
    for _ in range(20):
        line.join("home", "ann")
        assert "ann from home" in [line.take() for _ in range(4)]


def test_those_that_say_the_same_share_one_turn(line: Line) -> None:
    """A fleet with one password costs one verification; who says something else has a turn of its own."""
    fleet = [line.join("here", "app", key="right") for _ in range(500)]
    other = line.join("here", "app", key="wrong")
    assert len(set(fleet)) == 1
    assert fleet[0].waiting == 500
    assert line.turns.take() is fleet[0]
    line.turns.done(fleet[0])
    assert line.turns.take() is other


def test_who_leaves_gives_up_the_turn(line: Line) -> None:
    """The last one, not the first; and who has a turn that runs gives up nothing of others."""
    turn = line.join("a", "u", key="same")
    line.join("a", "u", key="same")
    line.turns.leave(turn)
    assert len(line.turns) == 1
    line.turns.leave(turn)
    assert len(line.turns) == 0
    assert line.turns.take() is None
    assert line.join("a", "u", key="same") is not turn


def test_too_many_of_an_address_are_refused(line: Line) -> None:
    """The newest; nobody of another address, however many there are."""
    for number in range(WAITING_PER_ADDRESS_MAX + 10):
        line.join("storm", "guest")
        line.join("home", f"u{number % 100}")
    assert line.turns.waiting("storm") == line.turns.waiting("home") == WAITING_PER_ADDRESS_MAX
    assert line.refused.count("guest from storm") == 10
    assert len(line.refused) == 20


def test_who_has_most_of_a_full_address_is_refused(line: Line) -> None:
    """On one machine, the storm on guest makes room for others."""
    for _ in range(WAITING_PER_ADDRESS_MAX):
        line.join("here", "guest")
    turn = line.join("here", "ann")
    assert not turn.refused
    assert line.refused == ["guest from here"]


def test_too_many_in_all_are_refused_to_the_address_that_has_most(line: Line) -> None:
    """An address of its own has a place, also when everything is full."""
    addresses = WAITING_MAX // 100 + 1
    for number in range(100 * addresses):
        line.join(f"bot{number % addresses}", f"guess{number}")
    assert len(line.turns) == WAITING_MAX
    turn = line.join("home", "ann")
    assert not turn.refused
    assert len(line.turns) == WAITING_MAX


def test_nothing_is_left_of_who_was_served(line: Line) -> None:
    """However many addresses and names there were."""
    for number in range(3000):
        line.join(f"a{number % 70}", f"u{number % 110}")
    turns = line.turns
    line.take_all()
    assert len(turns) == 0
    assert not any((turns._by_address, turns._by_name, turns._known, turns._in_place))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("in-process", "in-process"),
    ],
)
def test_what_counts_as_one_address(host: str, address: str) -> None:
    """An IPv6 client has a network of 64 bits to itself, and must not have as many turns."""
    assert turn_address(host) == address
    assert module.turn_address(address) == address
