"""A timeline beside the engine: after every turn of a session the replay is what the engine shows.

Every frame script is a recorded trace of frames. Each of its links is watched from its attach on; whenever
its session has had a turn, the standing that is replayed from frames alone must be that of `session_view`.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.observe.timeline.ring import FrameRing
from amqp10broker.observe.timeline.standing import NAMES
from amqp10broker.observe.timeline.taps import Taps
from amqp10broker.operations.snapshot import LinkView, SessionView
from amqp10broker.sessions.amqp10.status import session_view
from amqp10broker.sessions.wait_context import WaitContext
from tests.support import world
from tests.support.script import ScriptRunner

SCRIPTS = sorted(Path(__file__).parents[1].glob("scripts/*.txt"))
OF_SESSION = ("incoming_window", "remote_incoming_window", "next_incoming_id", "next_outgoing_id")
OF_LINK = ("credit", "delivery_count", "drain")


class Watched:
    """All links of one session, each in a ring of its own."""

    def __init__(self, session: world.WorldSession) -> None:
        self.session = session
        self.rings: dict[Any, FrameRing] = {}
        self.checked = 0

    def turn_over(self) -> None:
        """Compare, and watch what is attached now."""
        service = self.session.service
        engine = service.session
        if engine.ended:
            return
        for link, ring in list(self.rings.items()):
            ring.turn_over()
            if ring.ended is not None:
                del self.rings[link]
        view = session_view(service, WaitContext())
        handles = {(end.handle, end.role): end for end in view.links}
        for link in engine.links.by_handle.values():
            ring = self.rings.get(link)
            role = "receiver" if hasattr(link, "head") else "sender"
            shown = handles.get((link.remote_handle, role))
            if ring is not None and shown is not None:
                self._compare(ring, view, shown)
            elif ring is None and link.attached:
                clock = count()
                self.rings[link] = FrameRing(
                    engine, link, lambda: (0, 0, 0, False, 0, None), clock.__next__, str
                )
        engine.tap = Taps(list(self.rings.values())) if self.rings else None

    def _compare(self, ring: FrameRing, view: SessionView, shown: LinkView) -> None:
        replayed = dict(zip(NAMES, ring.before(ring.next), strict=True))
        expected = {name: getattr(view, name) for name in OF_SESSION}
        expected |= {name: getattr(shown, name) for name in OF_LINK}
        assert {name: replayed[name] for name in expected} == expected, list(ring.records(ring.first))
        if shown.role == "receiver":
            assert replayed["unsettled"] == shown.unsettled
        else:
            owners = self.session.service.session.inbound.unsettled.values()
            assert replayed["unsettled"] == sum(1 for owner in owners if owner.remote_handle == shown.handle)
        self.checked += 1


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Watched]:
    """Every session of every world is watched."""
    sessions: dict[Any, Watched] = {}
    wake = world.WorldSession.wake

    def watch(session: world.WorldSession) -> bool:
        if session not in sessions:
            sessions[session] = Watched(session)
        moved = wake(session)
        if moved and not session.over:
            sessions[session].turn_over()
        return moved

    monkeypatch.setattr(world.WorldSession, "wake", watch)
    return sessions


@pytest.mark.parametrize("chunk", [0, 64])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_replay_is_what_the_engine_shows(path: Path, chunk: int, watched: dict[Any, Watched]) -> None:
    """And the script's own trace is what it is when nothing listens."""
    text = path.read_text()
    if chunk and "any-cut: no" in text:
        pytest.skip("the script says why")
    assert ScriptRunner(chunk=chunk).run(text).splitlines() == text.splitlines()


def test_the_scripts_compare_much(watched: dict[Any, Watched]) -> None:
    """That nothing was compared would be no proof."""
    for path in SCRIPTS[:20]:
        ScriptRunner().run(path.read_text())
    assert sum(each.checked for each in watched.values()) > 80
