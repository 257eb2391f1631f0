"""Links whose queues are decided later, at any instant, do what they do where all is decided at once."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.queues.commands import Confirmed, Publish, PublishRejected, Unconfirmed
from amqp10broker.routing.exchange_types import Binding, Destination
from amqp10broker.sessions.dead_letters import DeadLetterTarget, Forwarding
from tests.support.catalog_log import FakeHost
from tests.support.dead_letters import held
from tests.support.declaring import bind, declare, declare_exchange, unbind
from tests.support.examples import tried
from tests.support.reply_addresses import new_reply_to
from tests.support.scenario import Scenario, content
from tests.unit.sessions.test_links_decided_later import REPLIES, TEMPORARY, SlowScene, said

LINKS = 3
TERMINI = ("source=q-{name}", "target=q-{name}", "target=anonymous", TEMPORARY, REPLIES)

STEPS = st.tuples(st.integers(0, LINKS - 1), st.sampled_from(TERMINI), st.integers(0, 4), st.integers(0, 2))
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
    """Remove the ids of temporary queues, which are drawn when their attach is decided."""
    return re.sub(r"-id\d+", "", text)


def by_link(lines: list[str]) -> list[list[str]]:
    """Return the frames of each link. Flows are left out: a link detached in the same turn gets none."""
    words = [nameless(line) for line in said(lines) if not line.startswith("B> FLOW")]
    return [[line for line in words if f" h={link}" in line] for link in range(LINKS)]


def contents(scene: Scenario) -> dict[str, list[str]]:
    """Return the contents of each queue that outlives its link, in order."""
    return {name: scene.bodies(name) for name in sorted(scene.world.vhost.queues) if name[:3] != "amq"}


@given(st.lists(STEPS, max_size=30))
def test_each_link_does_what_it_does_where_all_is_decided_at_once(
    steps: list[tuple[int, str, int, int]],
) -> None:
    """This holds for anything the client sends without waiting, and for any time of the decisions."""
    at_once, later, links = Scenario(), SlowScene(), Links()
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


QUEUES = ("a", "b", "c")
RETRY_MS = 100


class World(RuleBasedStateMachine):
    """A source, three target queues that answer when and how they like, and bindings that change."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog(FakeHost().start_queue)
        self.vhost = self.catalog.lookup_vhost("/")
        for name in QUEUES:
            declare(self.catalog, self.vhost, name)
        declare_exchange(self.catalog, self.vhost, "dlx", "fanout", durable=True)
        self.forwarding = Forwarding(
            "q", DeadLetterTarget("dlx", None), new_reply_to("worker"), retry_ms=RETRY_MS
        )
        self.now_ms = 0
        self.key = 0
        self.held: set[int] = set()
        self.took: dict[int, set[str]] = {}
        self.refused: set[int] = set()
        self.letters: list[tuple[str, Publish]] = []

    def bound(self) -> set[str]:
        return {each.destination.name for each in self.vhost.topology.bindings("dlx")}

    def post(self, posts: list[Any]) -> None:
        for queue, publish in posts:
            assert queue.name in self.bound()
            for _, body in publish.messages:
                assert int(body) in self.held
                assert queue.name not in self.took.get(int(body), ())
            assert len(set(publish.ids)) == len(publish.ids) == len(publish.messages)
            self.letters.append((queue.name, publish))

    def settle(self, keys: list[int]) -> None:
        """The source drops each message once, and not before a target has taken it."""
        for key in keys:
            self.held.remove(key)
            assert self.took[key]

    @rule(count=st.integers(1, 4))
    def die(self, count: int) -> None:
        keys = range(self.key, self.key + count)
        self.key += count
        self.held.update(keys)
        self.post(self.forwarding.send(held(*keys), self.vhost, self.now_ms))

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), answer=st.sampled_from([Confirmed, PublishRejected, Unconfirmed]))
    def answer(self, data: st.DataObject, answer: type) -> None:
        """A target queue answers one of its letters, wholly or in part."""
        index = data.draw(st.integers(0, len(self.letters) - 1))
        queue, publish = self.letters.pop(index)
        count = data.draw(st.integers(1, len(publish.ids)))
        ids, rest = publish.ids[:count], publish.ids[count:]
        bodies, other = publish.messages[:count], publish.messages[count:]
        if rest:
            self.letters.append((queue, Publish(publish.publisher, rest, other, settled=False)))
        if answer is Confirmed:
            for number, (_, body) in zip(ids, bodies, strict=True):
                # Sent twice, refused, then taken: the second answer to the same number says nothing.
                if number not in self.refused:
                    self.took.setdefault(int(body), set()).add(queue)
            self.settle(self.forwarding.confirmed(Confirmed(publish.publisher, ids, False)))
            return
        self.refused.update(ids)
        if answer is PublishRejected:
            self.forwarding.refused(PublishRejected(publish.publisher, ids, False, queue))
        else:
            self.forwarding.refused(Unconfirmed(publish.publisher, ids, False, queue=queue))

    @rule(ms=st.integers(1, 2 * RETRY_MS))
    def wait(self, ms: int) -> None:
        deadline = self.forwarding.deadline()
        self.now_ms = self.now_ms + ms if deadline is None else min(self.now_ms + ms, deadline)
        posts, done = self.forwarding.due(self.vhost, self.now_ms)
        self.post(posts)
        self.settle(done)

    @rule(queue=st.sampled_from(QUEUES))
    def rebind(self, queue: str) -> None:
        binding = Binding("dlx", Destination("queue", queue))
        if queue in self.bound():
            unbind(self.catalog, self.vhost, binding)
        else:
            bind(self.catalog, self.vhost, binding)

    @rule(exchange=st.sampled_from(["dlx", "none"]))
    def redirect(self, exchange: str) -> None:
        self.forwarding.redirect(DeadLetterTarget(exchange, None), self.now_ms)

    @invariant()
    def the_source_and_the_worker_agree(self) -> None:
        """Exactly the held messages are on their way, and a deadline exists for them."""
        assert len(self.forwarding) == len(self.held)
        deadline = self.forwarding.deadline()
        assert (deadline is None) == (not self.held)
        assert deadline is None or deadline <= self.now_ms + RETRY_MS

    def teardown(self) -> None:
        """When queues answer and stay bound, every message is settled."""
        self.forwarding.redirect(DeadLetterTarget("dlx", None), self.now_ms)
        if not self.bound():
            self.rebind("a")
        for _ in range(3):
            self.now_ms += RETRY_MS  # all that is held is due then
            posts, done = self.forwarding.due(self.vhost, self.now_ms)
            self.post(posts)
            self.settle(done)
            while self.letters:
                queue, publish = self.letters.pop(0)
                for number, (_, body) in zip(publish.ids, publish.messages, strict=True):
                    if number not in self.refused:
                        self.took.setdefault(int(body), set()).add(queue)
                confirmed = Confirmed(publish.publisher, publish.ids, False)
                self.settle(self.forwarding.confirmed(confirmed))
        assert not self.held


TestForwarding = World.TestCase
TestForwarding.settings = settings(max_examples=tried(100), stateful_step_count=40, deadline=None)
