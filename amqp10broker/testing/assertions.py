"""Assertions about the links of a test; each failure contains the link, the time and the frame.

Frames come from the timeline of each link (`service.timeline`), which is recorded from its attach on.
Assertions about a future state wait for it, since settlements and frames may be in flight when a client's
call returns; they check again every ten milliseconds, and fail with the last state.

The report of a failed test: its queues, messages without a route, waits with reasons, and the last frames
of its connections.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile
from typing import Any, Final

from amqp10broker.errors import BrokerError, hint
from amqp10broker.testing.server import OWN, ConnectionFrames, Server

WITHIN_S: Final = 2.0
_LOOK_S: Final = 0.01
_STEPS: Final = 5_000
# The value of a timeline that counts open deliveries: of a link; of a channel, in both directions.
_UNSETTLED: Final = ("unsettled", "channel_unacknowledged", "unconfirmed")


class Assertions:
    """The assertions about one virtual host."""

    vhost: str
    _began_ns: int

    _server: Server

    @abstractmethod
    def ask(self, operation: str, **arguments: Any) -> Any:
        """Run an operation of the broker."""

    @property
    @abstractmethod
    def connections(self) -> list[dict[str, Any]]:
        """Return the connections of clients."""

    @property
    @abstractmethod
    def waiting(self) -> list[dict[str, Any]]:
        """Return the links, channels and consumers that wait."""

    @property
    def links(self) -> list[dict[str, Any]]:
        """Return links and channels since the test began, in the order of their beginnings, as `WatchView`.

        Those that have ended are included. Raises `AssertionError` if there were too many to watch.
        """
        followed = self.ask("follow-links")
        assert not followed["left_out"], (
            f"{followed['left_out']} links are not watched: the test has more than "
            f"{len(followed['watches'])} links and channels"
        )
        return [each for each in followed["watches"] if not each["client"].startswith(OWN)]

    def timeline(self, link: dict[str, Any]) -> dict[str, Any]:
        """Return the timeline of one of `links`, frame by frame, in the format of `docs/page.md`."""
        whole: dict[str, Any] = self.ask("timeline", watch=link["watch"], limit=_STEPS)
        part = whole
        while part["more"]:
            part = self.ask("timeline", watch=link["watch"], since=part["next"], limit=_STEPS)
            whole["steps"] += part["steps"]
            whole["ended"] = part["ended"]
        return whole

    def _recorded(self) -> tuple[Iterable[Iterable[str]], Collection[int] | None]:
        recordings = self._server.recorded(self._began_ns)
        numbers = {each["id"] for each in self.connections} | {each["connection"] for each in self.links}
        return recordings, numbers if self._server.is_shared else None

    # --- assertions -------------------------------------------------------------------------------

    def assert_no_stall(self, within_s: float = WITHIN_S) -> None:
        """Check that no link, channel or consumer is held up: by credit, a window, ...

        A consumer of an empty queue is not held up.
        """
        __tracebackhide__ = True

        def problems() -> list[str]:
            stalled = [each for each in self.waiting if not each["idle"]]
            return [f"{wait_text(each)}\n{self._last_frame(each)}" for each in stalled]

        self._eventually(problems, within_s, "these wait")

    def assert_all_settled(self, within_s: float = WITHIN_S) -> None:
        """Check that no open link or channel has an unsettled delivery, in either direction."""
        __tracebackhide__ = True
        self._eventually(lambda: list(self._unsettled()), within_s, "these have unsettled deliveries")

    def assert_drained(self, queue: str, within_s: float = WITHIN_S) -> None:
        """Check that a queue has no message, neither ready nor unsettled."""
        __tracebackhide__ = True

        def problems() -> list[str]:
            (found,) = self.ask("list-queues", names=[queue]) or (None,)
            assert found is not None, f"virtual host '{self.vhost}' has no queue '{queue}'"
            ready, held = found["message_count"], found["messages_unsettled"] or 0
            if not ready and not held:
                return []
            lines = [f"  {ready} ready, {held} with consumers, {found['consumer_count']} consumers"]
            lines += [
                f"{wait_text(each)}\n{self._last_frame(each)}"
                for each in self.waiting
                if each["queue"] == queue
            ]
            # Of a channel only its consumers have a queue: deliveries by basic.get have none.
            return [*lines, *(list(self._unsettled(queue)) or (self._unsettled() if held else ()))]

        self._eventually(problems, within_s, f"queue '{queue}' has messages")

    def assert_credit_never_below(self, n: int, address: str) -> None:
        """Check that the credit of each link of an address was at least `n` since its first grant.

        For a receiving client that is its own credit, for a sending one the broker's grants to it.

        Args:
            address: as the client attached it, or the name of the queue that it means.

        Raises:
            AssertionError: it was lower; contains link, time and frame. Or there was no such link.
        """
        __tracebackhide__ = True
        links = [
            each
            for each in self.links
            if address in (each["address"], each["queue"]) and each["role"] in ("sender", "receiver")
        ]
        if not links:
            there = ", ".join(sorted({each["address"] or "-" for each in self.links if each["link"]}))
            raise AssertionError(f"no link of AMQP 1.0 to '{address}' since the test began, but to: {there}")
        found = [text for each in links if (text := self._below(n, each))]
        if found:
            raise AssertionError(f"credit was below {n}:\n" + "\n".join(found))

    def assert_lint_clean(self, *, ignore: Collection[str] = ()) -> None:
        """Check that no client breaks a rule of the lint (`docs/frames.md`).

        The frames of all connections since the beginning of the test count, including those that have ended.
        Raises `BrokerError` if a rule does not exist, or frames are not recorded.
        """
        __tracebackhide__ = True
        from amqp10broker.testing.linting import finding_text, findings

        found = findings(*self._recorded(), ignore)
        if found:
            texts = "\n".join(finding_text(each, self._began_ns) for each in found)
            raise AssertionError(f"the lint finds {len(found)}:\n{texts}")

    def assert_upgradable(self, to: str, *, ignore: Collection[str] = ()) -> None:
        """Check that no client, queue or policy uses what a version of RabbitMQ refuses or does otherwise.

        Clients are those of `assert_lint_clean`. Deprecated features count, too.

        Args:
            to: ``4.3``, or another version that `emulate` may be.
            ignore: names of findings (`docs/testing.md`).

        Raises:
            BrokerError: there is no such version or finding, or frames are not recorded.
        """
        __tracebackhide__ = True
        from amqp10broker.emulation import ROWS
        from amqp10broker.testing.linting import upgrade_findings

        known = [row.name for row in ROWS]
        for name in ignore:
            if name not in known:
                raise BrokerError(f"no finding of an upgrade is called {name}; {hint(name, known)}")
        asked = self.ask("upgrade-check", to=to)
        found = [
            each for each in asked["findings"] if each["kind"] != "client" and each["vhost"] == self.vhost
        ]
        found += upgrade_findings(to, *self._recorded(), asked["quorum_queues"])
        lines = [
            f"  {each['finding']} ({each['state']}): {each['kind']} {each['who']}: {each['what']}\n"
            f"    to do: {each['to_do']}"
            for each in found
            if each["finding"] not in ignore
        ]
        if lines:
            raise AssertionError(f"an upgrade to {to} finds {len(lines)}:\n" + "\n".join(lines))

    # --- texts of failures ------------------------------------------------------------------------

    def _eventually(self, problems: Callable[[], list[str]], within_s: float, what: str) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + within_s
        while found := problems():
            if time.monotonic() >= deadline:
                raise AssertionError(f"after {within_s:g} s {what}:\n" + "\n".join(found))
            time.sleep(_LOOK_S)

    def _below(self, n: int, link: dict[str, Any]) -> str | None:
        timeline = self.timeline(link)
        if timeline["since"]:
            return (
                f"  {link_text(link)}: its first {timeline['since']} frames are not kept any more, so nobody "
                "can say; make the test shorter"
            )
        credit = timeline["start"]["credit"]
        granted = credit > 0
        if granted and credit < n:
            return f"  {link_text(link)}: {credit} with its attach"
        for step in timeline["steps"]:
            credit = step["values"].get("credit", credit)
            granted = granted or credit > 0
            if granted and credit < n:
                return f"  {link_text(link)}: {credit} {self._step_text(link, step)}"
        return None

    def _unsettled(self, queue: str | None = None) -> Iterator[str]:
        watches = {(each["connection"], each["channel"], each["link"]): each for each in self.links}
        for connection in self.connections:
            for session in connection["sessions"]:
                for link in session["links"]:
                    if link["unsettled"] and queue in (None, link["queue"]):
                        watch = watches.get((connection["id"], session["channel"], link["name"]))
                        yield self._open_text(watch, f"link '{link['name']}'", link["unsettled"])
            for channel in connection["channels"]:
                queues = {each["queue"] for each in channel["consumers"]}
                count = channel["unacknowledged"] + channel["unconfirmed"]
                if count and (queue is None or queue in queues):
                    watch = watches.get((connection["id"], channel["number"], None))
                    yield self._open_text(watch, f"channel {channel['number']}", count)

    def _open_text(self, watch: dict[str, Any] | None, name: str, count: int) -> str:
        if watch is None:
            return f"  {name}: {count}"
        text = f"  {link_text(watch)}: {count}"
        timeline = self.timeline(watch)
        values = dict(timeline["start"])
        last = None
        for step in timeline["steps"]:
            if any(step["values"].get(each, 0) > (values.get(each) or 0) for each in _UNSETTLED):
                last = step
            values |= step["values"]
        return text if last is None else f"{text}, the last {self._step_text(watch, last)}"

    def _last_frame(self, waiting: dict[str, Any]) -> str:
        for watch in reversed(self.links):
            where = watch["connection"], watch["channel"]
            if where == (waiting["connection"], waiting["channel"]) and watch["link"] in (
                None,
                waiting["name"],
            ):
                steps = [step for step in self.timeline(watch)["steps"] if step["link"] and step.get("frame")]
                if steps:
                    return f"    its last frame {self._step_text(watch, steps[-1])}"
        return "    no frame since its attach"

    def _step_text(self, link: dict[str, Any], step: dict[str, Any]) -> str:
        at_s = (link["began_at_ns"] + step["at_ns"] - link["began_ns"] - self._began_ns) / 1e9
        arrow = {"in": "<-", "out": "->"}.get(step["direction"] or "", "--")
        frame = step.get("frame") or ", ".join(step["marks"]) or "no frame: the queue, or the writer"
        return f"at {at_s:.3f} s by {arrow} {frame}"


def link_text(link: dict[str, Any]) -> str:
    """Describe a link or channel of `WatchView`."""
    if link["link"] is None:
        return f"channel {link['channel']} of connection {link['connection']}"
    return (
        f"link '{link['link']}' of connection {link['connection']} "
        f"(the client is {link['role']}, address {link['address']})"
    )


def wait_text(waiting: dict[str, Any]) -> str:
    """Describe a document of `WaitingView`."""
    name = f"{waiting['kind']} '{waiting['name']}'" if waiting["name"] else f"channel {waiting['channel']}"
    role = f"the client is {waiting['role']}, " if waiting["role"] else ""
    queue = f"queue '{waiting['queue']}'" if waiting["queue"] else "no queue"
    since = "" if waiting["waits_for_s"] is None else f" for {waiting['waits_for_s']:.1f} s"
    return (
        f"  {name} of connection {waiting['connection']} ({role}{queue}): {waiting['waits']}{since}\n"
        f"    {waiting['waits_why']}\n    what helps: {waiting['to_do']}"
    )


_HANDSHAKE: Final = re.compile(
    r"(<-|->) (AMQP \d|ch 0 (SASL-\w+|OPEN|connection\.(start|secure|tune|open)(-ok)?)\b)"
)
_OPENED: Final = ("-> ch 0 OPEN", "-> ch 0 connection.open-ok")


def report(broker: Assertions, server: Server, began_ns: int) -> str:
    """Return the report as text, also for a broker that has ended.

    `began_ns` is the beginning of the test, since 1970.
    """
    lines: list[str] = []
    numbers: set[int] | None = None
    waiting: list[dict[str, Any]] = []
    if server.alive:
        try:
            lines += _queues(broker.ask("list-queues"))
            lines += _unroutable(broker.ask("list-exchanges"))
            waiting = broker.waiting
            there = {each["id"] for each in broker.connections}
            numbers = there | {each["connection"] for each in broker.ask("follow-links")["watches"]}
        except BrokerError as error:
            lines.append(f"the broker does not tell: {error}")
    else:
        lines.append("the broker does not run")
    kept = server.frames(began_ns)
    if numbers is not None and server.is_shared:
        kept = {number: each for number, each in kept.items() if number in numbers}
    waits = [wait_text(each) for each in waiting]
    gone = {each["connection"] for each in waiting}
    for number, each in kept.items():
        if number not in gone:
            waits += [f"{wait_text(wait)}\n    (when its client ended it)" for wait in each.waited]
    lines += ["waiting:", *waits] if waits else ["nothing waits"]
    for number, each in sorted(kept.items()):
        lines += _frames(number, each, began_ns)
    return "\n".join(lines)


def _queues(queues: list[dict[str, Any]]) -> list[str]:
    return [
        f"queue '{each['name']}': {each['message_count']} ready, {each['messages_unsettled'] or 0} with "
        f"consumers, {each['consumer_count']} consumers"
        for each in queues
    ] or ["no queue is declared"]


def _unroutable(exchanges: list[dict[str, Any]]) -> list[str]:
    return [
        f"exchange '{each['name']}': {each['unroutable']} of {each['published']} messages were routed to no "
        "queue"
        for each in exchanges
        if each["unroutable"]
    ]


def _frames(number: int, kept: ConnectionFrames, began_ns: int) -> list[str]:
    shown = f"the last {len(kept.lines)} of {kept.total} frames" if kept.total > len(kept.lines) else "frames"
    whose = f" ({kept.peer})" if kept.peer else ""
    frames = list(kept.lines)
    handshake = list(takewhile(lambda frame: _HANDSHAKE.match(frame[1]), frames))
    if any(line.startswith(_OPENED) for _, line in handshake):
        frames[: len(handshake)] = [(handshake[-1][0], f"(opened, after {len(handshake)} frames)")]
    return [
        f"connection {number}{whose}, {shown}:",
        *(f"  {(at_ns - began_ns) / 1e9:8.3f} s  {line}" for at_ns, line in frames),
    ]
