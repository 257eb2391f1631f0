"""Transfers of links in turns are handled link by link where nobody can tell, and in order elsewhere."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from amqp10broker.queues.commands import Publish
from amqp10broker.sessions.amqp10 import session as sessions
from tests.support.puppet import Puppet
from tests.support.scene import Scene, content

LINKS = 3
FIRST = 1000
"""Delivery-ids that take as many bytes as most do: a layout holds for them."""


def _scene(*targets: str, settled: bool = True) -> Scene:
    """One link for each target, each of which has sent a first message, whose layout is known since then."""
    scene = Scene("a", "b", "c")
    mode = "settled" if settled else "unsettled"
    for handle, target in enumerate(targets):
        scene.sender(target, handle, snd_settle_mode=mode)
        scene.publish(
            content("first", to="/queues/a"), handle, did=FIRST + handle, settled=str(settled).lower()
        )
    return scene


def _puppets(scene: Scene) -> dict[str, Puppet]:
    return {name: Puppet(name, box, box.inbox) for name, box in scene.world.queues.items()}


def _in_one_read(
    scene: Scene, sent: list[tuple[int, bytes]], *, settled: bool = True, again: int | None = None
) -> list[str]:
    """`again`: the place of one that has the delivery-id of the one before it."""
    lines = [
        f"TRANSFER h={handle} did={FIRST + LINKS + place - (place == again)} settled={str(settled).lower()}"
        f" payload={each.hex()}"
        for place, (handle, each) in enumerate(sent)
    ]
    return scene.do("C> " + " ; ".join(lines))


def _turns(count: int, links: int = LINKS) -> list[tuple[int, bytes]]:
    return [(number % links, content(f"m{number}", to="/queues/a")) for number in range(count)]


def _publishes(puppet: Puppet) -> list[list[bytes]]:
    return [[body for _, body in each.messages] for each in puppet.told_only(Publish)]


@pytest.mark.parametrize("settled", [True, False])
def test_what_goes_to_queues_of_their_own_is_one_publish_for_each(settled: bool) -> None:
    scene = _scene("/queues/a", "/queues/b", "/queues/c", settled=settled)
    puppets = _puppets(scene)
    sent = _turns(30)
    _in_one_read(scene, sent, settled=settled)
    for handle, puppet in enumerate(puppets.values()):
        (publish,) = _publishes(puppet)
        assert len(publish) == 10
        assert all(
            own.endswith(payload[-4:]) for own, (_, payload) in zip(publish, sent[handle::LINKS], strict=True)
        )


@pytest.mark.parametrize(
    "targets",
    [
        ("/queues/a", "/queues/b", "/queues/a"),
        ("/queues/a", "/queues/b", None),
        ("/queues/a", "/queues/b", "/exchanges/amq.fanout"),
    ],
    ids=["two links, one queue", "anonymous terminus", "exchange"],
)
def test_what_may_meet_in_a_queue_stays_in_the_order_of_the_session(targets: tuple[str | None, ...]) -> None:
    scene = _scene(*map(str, filter(None, targets)))
    if None in targets:
        scene.sender(None, 2, snd_settle_mode="settled")
        scene.publish(content("first", to="/queues/a"), 2, did=FIRST + 2, settled="true")
    puppets = _puppets(scene)
    _in_one_read(scene, _turns(30))
    told = {name: _publishes(puppet) for name, puppet in puppets.items()}
    assert [len(each) for each in told["b"]] == [1] * 10
    to_a = [body for publish in told["a"] for body in publish]
    numbers = [
        number for number in range(30) if number % 3 == 0 or (number % 3 == 2 and "amq" not in str(targets))
    ]
    assert [body.rpartition(b"m")[2].decode() for body in to_a] == [str(number) for number in numbers]


def test_a_session_that_is_watched_shows_frames_as_they_came() -> None:
    class Tap:
        def __init__(self) -> None:
            self.items: list[object] = []

        def received(self, item: object) -> None:
            self.items.append(item)

        def sent(self, frame: bytes) -> None:
            """Not of interest."""

    scene = _scene("/queues/a", "/queues/b", "/queues/c")
    tap = Tap()
    scene.world.clients["C"].sessions[0].service.session.output.tap = tap  # type: ignore[assignment]
    _in_one_read(scene, _turns(30))
    assert len(tap.items) == 30


@pytest.mark.parametrize("seed", range(40))
def test_queues_get_the_same_as_one_frame_after_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With faults among them too: what was sent before, and what others send, is there; the link ends."""
    rng = random.Random(seed)
    targets = (
        [f"/queues/{rng.choice('aabc')}" for _ in range(LINKS)]
        if seed % 2
        else ["/queues/a", "/queues/b", "/queues/c"]
    )
    settled = rng.random() < 0.5
    sent = []
    for number in range(40):
        bad = rng.random() < 0.02
        sent.append((rng.randrange(LINKS), b"\xff" if bad else content(f"m{number}", to="/queues/a")))
    again = rng.randrange(1, 40) if rng.random() < 0.5 else None
    found = []
    for least in (sessions.IN_TURNS_MIN, 10**9):
        monkeypatch.setattr(sessions, "IN_TURNS_MIN", least)
        scene = _scene(*targets, settled=settled)
        puppets = _puppets(scene)
        came = _in_one_read(scene, sent, settled=settled, again=again)
        ends = sorted(line for line in came if "DETACH" in line or "END" in line)
        told = {name: [*chain.from_iterable(_publishes(each))] for name, each in puppets.items()}
        found.append((ends, told))
    assert found[0] == found[1]
    assert sum(map(len, found[0][1].values()))
