"""What a test can demand of its links: each failure says which link, since when, and by which frame.

Frames come from the timeline of each link (`service.timeline`), which is recorded from its attach on.
Assertions that something comes to be wait for it, as settlements and frames are on their way when a client's
call returns; they look again every ten milliseconds, and say what is still wrong when the time is over.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from amqp10broker.testing.frames import OWN
from amqp10broker.testing.server import Server

WITHIN_S: Final = 2.0
_LOOK_S: Final = 0.01
_STEPS: Final = 5_000
_UNSETTLED: Final = ("unsettled", "channel_unacknowledged", "unconfirmed")
"""What of a timeline's values counts open deliveries: of a link; of a channel, in both directions."""


class Assertions:
    """Of one virtual host."""

    vhost: str
    _began_ns: int

    _server: Server

    @abstractmethod
    def ask(self, operation: str, **arguments: Any) -> Any:
        """Run an operation of the broker."""

    @property
    @abstractmethod
    def connections(self) -> list[dict[str, Any]]:
        """Clients' connections."""

    @property
    @abstractmethod
    def waiting(self) -> list[dict[str, Any]]:
        """What waits."""

    @property
    def links(self) -> list[dict[str, Any]]:
        """Links of AMQP 1.0 and channels of AMQP 0-9-1 since the test began, in the order of their beginning.

        They are those of `WatchView`; those that have ended are among them.

        Raises:
            AssertionError: there were so many that not all could be watched.
        """
        followed = self.ask("follow-links")
        assert not followed["left_out"], (
            f"{followed['left_out']} links are not watched: the test has more than "
            f"{len(followed['watches'])} links and channels"
        )
        return [each for each in followed["watches"] if not each["client"].startswith(OWN)]

    def timeline(self, link: dict[str, Any]) -> dict[str, Any]:
        """All that one of `links` has done, frame by frame: `docs/timeline.md` says how to read it."""
        whole: dict[str, Any] = self.ask("timeline", watch=link["watch"], limit=_STEPS)
        part = whole
        while part["more"]:
            part = self.ask("timeline", watch=link["watch"], since=part["next"], limit=_STEPS)
            whole["steps"] += part["steps"]
            whole["ended"] = part["ended"]
        return whole

    # --- assertions -------------------------------------------------------------------------------

    def assert_no_stall(self, within_s: float = WITHIN_S) -> None:
        """No link, channel or consumer waits for anything that is somebody's fault: credit, a window, ...

        Who has nothing to do, as an empty queue's consumer, is no stall.

        Args:
            within_s: so long what waits may still go on.

        Raises:
            AssertionError: something waits; says what, why, since when and behind which frame.
        """
        __tracebackhide__ = True

        def problems() -> list[str]:
            stalled = [each for each in self.waiting if not each["idle"]]
            return [f"{wait_text(each)}\n{self._last_frame(each)}" for each in stalled]

        self._eventually(problems, within_s, "these wait")

    def assert_all_settled(self, within_s: float = WITHIN_S) -> None:
        """No delivery of any link or channel that is there is unsettled, in either direction.

        Args:
            within_s: so long settlements may be on their way.

        Raises:
            AssertionError: says which link has how many, and with which frame the last one came.
        """
        __tracebackhide__ = True
        self._eventually(lambda: list(self._unsettled()), within_s, "these have unsettled deliveries")

    def assert_drained(self, queue: str, within_s: float = WITHIN_S) -> None:
        """A queue has no message any more, neither ready nor held by a consumer.

        Args:
            queue: its name.
            within_s: so long its consumers may take.

        Raises:
            AssertionError: says how many there are, who holds them, and what its consumers wait for.
        """
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
            # Of a channel only its consumers say their queue: what is held by basic.get has none.
            return [*lines, *(list(self._unsettled(queue)) or (self._unsettled() if held else ()))]

        self._eventually(problems, within_s, f"queue '{queue}' has messages")

    def assert_credit_never_below(self, n: int, address: str) -> None:
        """The credit of each link of an address was never below `n`, from its first grant until now.

        For a receiving client that is its own credit, for a sending one the broker's grants to it.

        Args:
            n: messages.
            address: as the client attached it, or the name of the queue that it means.

        Raises:
            AssertionError: it was; says of which link, when, and by which frame. Or there was no such link.
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
        """No client breaks the protocol, risks messages or costs more than it needs to (`docs/lint.md`).

        It looks at the frames of all connections that have begun since the test did, those that have ended
        among them.

        Args:
            ignore: ids of rules that do not count: `"no-heartbeat"`.

        Raises:
            AssertionError: says which rule, whose link, why it hurts, what to do, and which frames show it.
            BrokerError: there is no such rule, or no frames are kept.
        """
        __tracebackhide__ = True
        from amqp10broker.testing.linting import finding_text, findings

        recordings = self._server.recorded(self._began_ns)
        numbers = {each["id"] for each in self.connections} | {each["connection"] for each in self.links}
        found = findings(recordings, numbers if self._server.is_shared else None, ignore)
        if found:
            texts = "\n".join(finding_text(each, self._began_ns) for each in found)
            raise AssertionError(f"the lint finds {len(found)}:\n{texts}")

    # --- what they say ----------------------------------------------------------------------------

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
        """Of what is there now: how many deliveries are open, and with which frame the last came."""
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
        """The last frame of what waits: the one behind which nothing came."""
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
    """A link or channel of `WatchView`, for people."""
    if link["link"] is None:
        return f"channel {link['channel']} of connection {link['connection']}"
    return (
        f"link '{link['link']}' of connection {link['connection']} "
        f"(the client is {link['role']}, address {link['address']})"
    )


def wait_text(waiting: dict[str, Any]) -> str:
    """What waits and why, for people: a document of `WaitingView`."""
    name = f"{waiting['kind']} '{waiting['name']}'" if waiting["name"] else f"channel {waiting['channel']}"
    role = f"the client is {waiting['role']}, " if waiting["role"] else ""
    queue = f"queue '{waiting['queue']}'" if waiting["queue"] else "no queue"
    since = "" if waiting["waits_for_s"] is None else f" for {waiting['waits_for_s']:.1f} s"
    return (
        f"  {name} of connection {waiting['connection']} ({role}{queue}): {waiting['waits']}{since}\n"
        f"    {waiting['waits_why']}\n    what helps: {waiting['to_do']}"
    )
