"""Links whose queues are decided later, at any instant, do what they do where all is decided at once."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.support.scene import Scene, content
from tests.unit.sessions.test_links_decided_later import REPLIES, TEMPORARY, SlowScene, said

LINKS = 3
TERMINI = ("source=q-{name}", "target=q-{name}", "target=anonymous", TEMPORARY, REPLIES)

STEPS = st.tuples(
    st.integers(0, LINKS - 1),
    st.sampled_from(TERMINI),
    st.integers(0, 4),
    st.integers(0, 2),
)
"""Which link; what it attaches to if detached; what it sends if attached; how many decisions come then."""


class Links:
    """A client that waits for nothing: it uses each link as if attached, every time by another name."""

    def __init__(self) -> None:
        self.turns = [0] * LINKS
        self.termini: list[str | None] = [None] * LINKS

    def frame(self, link: int, terminus: str, what: int) -> str:
        attached = self.termini[link]
        if attached is None:
            self.termini[link] = terminus
            self.turns[link] += 1
        name = f"{link}-{self.turns[link]}"
        if attached is None:
            return f"ATTACH h={link} name={name} {terminus.format(name=name)}"
        if what == 0:
            self.termini[link] = None
            return f"DETACH h={link} closed=true"
        if attached.startswith("source"):
            return f"FLOW h={link} dc=0 cr={what}" + (" echo=true" if what > 2 else "")
        if attached == "target=anonymous":
            payload = content(f"m{what}", to=f"a-{name}-{what % 2}")
            return f"TRANSFER h={link} payload={payload.hex()}"
        parts = range(1, what)  # of a message that is whole then
        return " ; ".join(
            f"TRANSFER h={link} body=m{what} size=100 part={part}/{len(parts)}" for part in parts or (1,)
        ).replace("/0", "/1")


def nameless(text: str) -> str:
    """Without what tells temporary queues apart: it is drawn when their attach is looked at."""
    return re.sub(r"-id\d+", "", text)


def by_link(lines: list[str]) -> list[list[str]]:
    """How each link comes and goes. Flows of one that is detached in the same turn are not answered."""
    words = [nameless(line) for line in said(lines) if not line.startswith("B> FLOW")]
    return [[line for line in words if f" h={link}" in line] for link in range(LINKS)]


def contents(scene: Scene) -> dict[str, list[str]]:
    """What is in each queue that outlives its link, in order."""
    return {name: scene.bodies(name) for name in sorted(scene.world.vhost.queues) if name[:3] != "amq"}


@given(st.lists(STEPS, max_size=30))
def test_each_link_does_what_it_does_where_all_is_decided_at_once(
    steps: list[tuple[int, str, int, int]],
) -> None:
    """Whatever the client sends without waiting, and whenever the decisions come."""
    at_once, later, links = Scene(), SlowScene(), Links()
    heard: list[str] = []
    waited: list[str] = []
    for link, terminus, what, decisions in steps:
        frame = links.frame(link, terminus, what)
        heard += at_once.do(f"C> {frame}")
        waited += later.do(f"C> {frame}")
        for _ in range(min(decisions, len(later.slow.proposed))):
            waited += later.decide()
    waited += later.decide_all()
    assert by_link(waited) == by_link(heard)
    assert not later.held.by_remote
    names, expected = (sorted(map(nameless, scene.world.vhost.queues)) for scene in (later, at_once))
    assert names == expected
    assert contents(later) == contents(at_once)
