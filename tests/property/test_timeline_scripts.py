"""The state that follows from frames beside the engine's, after every step of a session.

Every frame script is a recorded trace of frames. Each of its links is watched from its attach on, and each
of its connections has a tap on its bytes; whenever its session has had a step, what both have reduced from
frames must be `session_view`.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.observe.frames.link_state import Direction, ObservedConnection
from amqp10broker.observe.frames.records import FrameSplitter
from amqp10broker.observe.timeline import LINK_NAMES, FrameRing, Taps
from amqp10broker.operations.snapshot import LinkView, SessionView
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from amqp10broker.sessions.diagnosis.why_link import session_view
from tests.support import session_harness
from tests.support.script import ScriptRunner

SCRIPTS = sorted(Path(__file__).parents[1].glob("scripts/*.txt"))
OF_SESSION = ("incoming_window", "remote_incoming_window", "next_incoming_id", "next_outgoing_id")
OF_LINK = ("credit", "delivery_count", "drain")


class Watched:
    """All links of one session, each in a ring of its own."""

    def __init__(self, session: session_harness.FakeSessionTask) -> None:
        self.session = session
        self.rings: dict[Any, FrameRing] = {}
        self.checked = 0

    def turn_over(self) -> None:
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
        engine.output.tap = Taps(list(self.rings.values())) if self.rings else None

    def _compare(self, ring: FrameRing, view: SessionView, shown: LinkView) -> None:
        replayed = dict(zip(LINK_NAMES, ring.before(ring.next), strict=True))
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
    sessions: dict[Any, Watched] = {}
    wake = session_harness.FakeSessionTask.wake

    def watch(session: session_harness.FakeSessionTask) -> bool:
        if session not in sessions:
            sessions[session] = Watched(session)
        moved = wake(session)
        if moved and not session.over:
            sessions[session].turn_over()
        return moved

    monkeypatch.setattr(session_harness.FakeSessionTask, "wake", watch)
    return sessions


@pytest.mark.parametrize("chunk", [0, 64])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_replay_is_what_the_engine_shows(path: Path, chunk: int, watched: dict[Any, Watched]) -> None:
    """The script's own trace is the same as without an observer."""
    text = path.read_text()
    if chunk and "any-cut: no" in text:
        pytest.skip("the script says why")
    assert ScriptRunner(chunk=chunk).run(text).splitlines() == text.splitlines()


class Tapped:
    """One client's connection as its bytes show it, in both directions."""

    def __init__(self) -> None:
        self.state = ObservedConnection()
        self._splitters: dict[Direction, FrameSplitter] = {"in": FrameSplitter(), "out": FrameSplitter()}
        self.compared = 0

    def feed(self, direction: Direction, data: bytes) -> None:
        for frame in self._splitters[direction].feed(data):
            self.state.apply(direction, frame.channel, frame.body)

    def compare(self, session: session_harness.FakeSessionTask) -> None:
        """After each step the session's state follows from all frames so far."""
        engine = session.service.session
        observed = self.state.session("in", engine.channel)
        if session.over or engine.ended or session.letters or observed is None or observed.ended:
            return
        view = session_view(session.service, WaitContext())
        came, went = observed.windows["in"], observed.windows["out"]
        assert (came.left, came.next_id) == (view.incoming_window, view.next_incoming_id)
        assert (went.left, went.next_id) == (view.remote_incoming_window, view.next_outgoing_id)
        for shown in view.links:
            link = observed.links["in"].get(shown.handle)
            if link is None or not link.attached or link.ended:
                continue
            credit = link.credit
            expected = tuple(getattr(shown, name) for name in OF_LINK)
            assert (credit.link_credit, credit.delivery_count, credit.drain) == expected, shown
            if shown.role == "receiver":
                assert len(link.unsettled) == shown.unsettled
            self.compared += 1


@pytest.fixture
def tapped(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Tapped]:
    taps: dict[Any, Tapped] = {}
    feed, written, wake = (
        session_harness.Client.feed,
        session_harness.Client.written,
        session_harness.FakeSessionTask.wake,
    )

    def fed(client: session_harness.Client, data: bytes) -> None:
        taps.setdefault(client, Tapped()).feed("in", data)
        feed(client, data)

    def wrote(client: session_harness.Client, data: bytes) -> None:
        taps.setdefault(client, Tapped()).feed("out", data)
        written(client, data)

    def woken(session: session_harness.FakeSessionTask) -> bool:
        moved = wake(session)
        if moved:
            taps[session.client].compare(session)
        return moved

    monkeypatch.setattr(session_harness.Client, "feed", fed)
    monkeypatch.setattr(session_harness.Client, "written", wrote)
    monkeypatch.setattr(session_harness.FakeSessionTask, "wake", woken)
    return taps


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_bytes_of_a_connection_show_what_the_engine_has(path: Path, tapped: dict[Any, Tapped]) -> None:
    """This holds for a tap that has only the bytes."""
    text = path.read_text()
    assert ScriptRunner().run(text).splitlines() == text.splitlines()


def test_the_scripts_compare_much(watched: dict[Any, Watched], tapped: dict[Any, Tapped]) -> None:
    """A script without comparisons proves nothing."""
    for path in SCRIPTS[:20]:
        ScriptRunner().run(path.read_text())
    assert sum(each.checked for each in watched.values()) > 80
    assert sum(each.compared for each in tapped.values()) > 80
