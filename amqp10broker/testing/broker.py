"""The objects that fixtures pass to tests: an address for clients, and access to the broker.

Every call requests the broker's current state or an operation, which takes some hundred microseconds, and may
come from any thread and any event loop. All calls use operations of `operations.registry` and a client of
AMQP 1.0.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from amqp10broker.client import blocking
from amqp10broker.client.message import Header, Message
from amqp10broker.client.options import ClientOptions, exchange_address, made_up_container_id, queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, hint
from amqp10broker.testing.frames import OWN, ConnectionFrames, finding_text, findings, upgrade_findings

USER: Final = "guest"
PASSWORD: Final = "guest"
CLIENT_TIMEOUT_S: Final = 10.0
WITHIN_S: Final = 2.0
_LOOK_S: Final = 0.01
# How long a fault that ends something may take to find a client.
FAULT_FOUND_S: Final = 5.0
_STEPS: Final = 5_000
# The value of a timeline that counts open deliveries: of a link; of a channel, in both directions.
_UNSETTLED: Final = ("unsettled", "channel_unacknowledged", "unconfirmed")
_TOPOLOGY: Final = ("policies", "queues", "exchanges", "bindings")


@dataclass(slots=True)
class ActiveFault:
    """A fault that is active within its block; `number` is for `ask("lift-fault")`."""

    number: int
    _ask: Callable[..., Any]
    _lifted: dict[str, Any] | None = None

    @property
    def view(self) -> dict[str, Any]:
        """The entry in `list-faults`; after the fault is lifted, its last state."""
        if self._lifted is not None:
            return self._lifted
        found: dict[str, Any] = next(
            each for each in self._ask("list-faults") if each["fault"] == self.number
        )
        return found

    @property
    def hits(self) -> int:
        return int(self.view["hits"])

    @property
    def held(self) -> int:
        """Number of messages, confirms and flows that the fault holds back."""
        return int(self.view["held"])

    def lift(self) -> None:
        """End the fault, and release everything it holds back."""
        if self._lifted is None:
            self._lifted = self._ask("lift-fault", fault=self.number)


class VhostFaults:
    """Faults that a test can inject into its broker, for the duration of a block.

    Within a virtual host a fault applies to all clients, or only to a queue (or the address of links), a
    client (its container-id or connection name) or a link, each a name with ``*`` and ``?`` as wildcards.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    @contextmanager
    def inject(self, kind: str, **options: Any) -> Iterator[ActiveFault]:
        """Inject any fault of the operation ``inject-fault``, with its arguments."""
        fault = ActiveFault(self._ask("inject-fault", kind=kind, **options)["fault"], self._ask)
        try:
            yield fault
        finally:
            fault.lift()

    def reject_publishes(self, count: int | None = None, **targets: Any) -> Any:
        """Reject the next `count` messages, or all: basic.nack to clients of AMQP 0-9-1."""
        return self.inject("reject-publishes", count=count, **targets)

    def hold_confirms(self, count: int | None = None, **targets: Any) -> Any:
        """Hold back the outcomes of the next `count` messages, or all, until the fault is lifted."""
        return self.inject("hold-confirms", count=count, **targets)

    def redeliver(self, count: int | None = None, **targets: Any) -> Any:
        """Lose the accepts of the next `count` messages, or all, so that they are delivered again."""
        return self.inject("redeliver", count=count, **targets)

    def pause_queue(self, queue: str = "*", **targets: Any) -> Any:
        """Suspend commands of clients to queues until the fault is lifted, as during a leader election."""
        return self.inject("pause-queue", queue=queue, **targets)

    def limit_credit(self, count: int = 0, **targets: Any) -> Any:
        """Limit the grants of each publishing link to `count` messages from its next grant on."""
        return self.inject("limit-credit", count=count, **targets)

    def hold_bytes(self, **targets: Any) -> Any:
        """Neither read from nor write to connections, as on a dead network; only `client` is supported."""
        return self.inject("hold-bytes", **targets)

    def reset_after(self, frames: int = 1, **targets: Any) -> Any:
        """Reset connections after this many more frames to them; only `client` is supported."""
        return self.inject("reset-after", count=frames, **targets)

    def refuse_attaches(
        self, count: int | None = None, condition: str = "amqp:unauthorized-access", **targets: Any
    ) -> Any:
        """Refuse the next `count` attaches, or all, with a condition."""
        return self.inject("refuse-attaches", count=count, condition=condition, **targets)

    @contextmanager
    def alarm(self, name: str = "memory") -> Iterator[None]:
        """Raise the alarm of ``memory`` or ``disk``, which blocks publishers.

        Clients of AMQP 0-9-1 get connection.blocked, then unblocked; those of 1.0 have no window. It applies
        to all clients of the broker, not to those of the virtual host alone.
        """
        self._ask("alarm", name=name, on=True)
        try:
            yield
        finally:
            self._ask("alarm", name=name, on=False)

    def detach(self, condition: str = "amqp:link:detach-forced", **targets: Any) -> int:
        """Detach links with a condition, cancel consumers of AMQP 0-9-1, and return their number. Raises
        `AssertionError` if there were none.
        """
        return self._once("detach", condition=condition, **targets)

    def end(self, condition: str = "amqp:internal-error", code: int = 406, **targets: Any) -> int:
        """End sessions with a condition, and channels with a code; like `detach`."""
        return self._once("end", condition=condition, code=code, **targets)

    def close(self, condition: str = "amqp:connection:forced", code: int = 320, **targets: Any) -> int:
        """Close connections with a condition or a code; like `detach`."""
        return self._once("close", condition=condition, code=code, **targets)

    def _once(self, kind: str, **options: Any) -> int:
        __tracebackhide__ = True
        with self.inject(kind, **options) as fault:
            deadline = time.monotonic() + FAULT_FOUND_S
            while fault.held or not fault.hits:
                assert time.monotonic() < deadline, f"{kind}: no client is there that it is for: {options}"
                time.sleep(_LOOK_S)
        return fault.hits


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue by its name, which need not exist; each attribute reads the broker's current state."""

    broker: AmqpBroker
    name: str

    @property
    def status(self) -> dict[str, Any]:
        """Return the values of ``amqp10broker queue list``."""
        found: list[dict[str, Any]] = self.broker.ask("list-queues", names=[self.name])
        if not found:
            raise BrokerError(
                f"virtual host '{self.broker.vhost}' has no queue '{self.name}'; it has "
                f"{', '.join(self.broker.queues) or 'none'}"
            )
        return found[0]

    @property
    def exists(self) -> bool:
        return self.name in self.broker.queues

    @property
    def ready(self) -> int:
        """Number of messages that wait for a consumer; in a stream, of all messages."""
        return int(self.status["message_count"])

    @property
    def unsettled(self) -> int:
        """Number of messages delivered to consumers and not settled."""
        return int(self.status["messages_unsettled"] or 0)

    @property
    def messages(self) -> int:
        """Number of ready and unsettled messages."""
        status = self.status
        return int(status["message_count"] + (status["messages_unsettled"] or 0))

    @property
    def consumers(self) -> int:
        """Number of consumers that may get messages."""
        return int(self.status["consumer_count"])

    def purge(self) -> None:
        self.broker.ask("purge-queue", name=self.name)

    def delete(self) -> None:
        self.broker.ask("delete-queue", name=self.name)


class Server(ABC):
    """The broker behind `AmqpBroker`, in this process or another. If `is_shared`, not all connections are
    this process's.
    """

    host: str
    port: int
    is_shared: bool

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        """Run an operation of `operations.registry`. Raises `BrokerError` if it was refused, or the broker is
        not running.
        """

    @abstractmethod
    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        """Return the last frames of connections with any since a time, by number."""

    @abstractmethod
    def recorded(self, began_ns: int) -> Iterable[Iterable[str]]:
        """Return the recordings of connections that have begun since a time."""

    @abstractmethod
    def stop(self) -> None: ...


class AmqpBroker:
    """The broker of one test, limited to its virtual host.

    The failure of an assertion contains the link, the time and the frame. Frames come from the timeline of
    each link (`service.timeline`), which is recorded from its attach on. Assertions about a future state wait
    for it, since settlements and frames may be in flight when a client's call returns; they check again every
    ten milliseconds, and fail with the last state.
    """

    user = USER
    password = PASSWORD

    def __init__(self, server: Server, vhost: str) -> None:
        self._server = server
        self.vhost = vhost
        self.faults = VhostFaults(self.ask)
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        self._server.ask("add-vhost", {"name": self.vhost}, None)
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        self._server.ask("set-permissions", {"user": self.user, "vhost": self.vhost, **everything}, None)
        self.ask("follow-links")

    def end(self) -> None:
        if self._server.alive:
            self.ask("follow-links", on=False)
            self._server.ask("delete-vhost", {"name": self.vhost}, None)

    # --- address ----------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        """``amqp://user:password@host:port/vhost``, for clients that support a virtual host in the URL."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def hostname(self) -> str:
        """``vhost:NAME``, the hostname in the open of AMQP 1.0 clients that selects the virtual host."""
        return f"vhost:{self.vhost}"

    # --- state ------------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self._server.ask(operation, arguments, self.vhost)

    def queue(self, name: str) -> Queue:
        """Return a queue by its name, which need not exist."""
        return Queue(self, name)

    @property
    def queues(self) -> list[str]:
        return [each["name"] for each in self.ask("list-queues", counts=False)]

    @property
    def connections(self) -> list[dict[str, Any]]:
        return [
            each
            for each in self.ask("connections")
            if each["vhost"] == self.vhost and not (each["container_id"] or "").startswith(OWN)
        ]

    @property
    def waiting(self) -> list[dict[str, Any]]:
        found = self.ask("waiting", idle=True)["waiting"]
        return [each for each in found if each["vhost"] == self.vhost]

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

    def report(self) -> str:
        """Return the report of a failed test, also for a broker that has ended: its queues, messages without
        a route, waits with reasons, and the last frames of its connections.
        """
        lines: list[str] = []
        numbers: set[int] | None = None
        waiting: list[dict[str, Any]] = []
        if self._server.alive:
            try:
                lines += _queues(self.ask("list-queues"))
                lines += _unroutable(self.ask("list-exchanges"))
                waiting = self.waiting
                there = {each["id"] for each in self.connections}
                numbers = there | {each["connection"] for each in self.ask("follow-links")["watches"]}
            except BrokerError as error:
                lines.append(f"the broker does not tell: {error}")
        else:
            lines.append("the broker does not run")
        kept = self._server.frames(self._began_ns)
        if numbers is not None and self._server.is_shared:
            kept = {number: each for number, each in kept.items() if number in numbers}
        waits = [wait_text(each) for each in waiting]
        gone = {each["connection"] for each in waiting}
        for number, each in kept.items():
            if number not in gone:
                waits += [f"{wait_text(wait)}\n    (when its client ended it)" for wait in each.waited]
        lines += ["waiting:", *waits] if waits else ["nothing waits"]
        for number, each in sorted(kept.items()):
            lines += _frames(number, each, self._began_ns)
        return "\n".join(lines)

    # --- actions ----------------------------------------------------------------------------------

    def declare(
        self,
        queue: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        """Declare a queue. `type`: ``classic``, ``quorum`` or ``stream``; None: the default. Raises
        `BrokerError` if it exists with other properties, or cannot be declared.
        """
        given = {**({} if type is None else {"x-queue-type": type}), **(arguments or {})}
        self.ask("declare-queue", name=queue, durable=durable, auto_delete=auto_delete, arguments=given)
        return self.queue(queue)

    def declare_exchange(self, exchange: str, type: str = "direct") -> None:
        self.ask("declare-exchange", name=exchange, type=type)

    def bind(self, exchange: str, queue: str, key: str = "") -> None:
        self.ask("bind", source=exchange, destination_queue=queue, binding_key=key)

    def load(self, path: str | Path, vhost: str | None = None) -> None:
        """Declare the objects of one virtual host in a definitions file of RabbitMQ or this broker in the
        test's virtual host: queues, exchanges, bindings and policies. `vhost`: which one; None: the only one.
        Raises `BrokerError` if the file has several, or one of its objects is refused.
        """
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {name: document.get(name, []) for name in _TOPOLOGY}
        named = sorted({each.get("vhost", "/") for records in found.values() for each in records})
        if vhost is None and len(named) > 1:
            raise BrokerError(f"{path} has virtual hosts {', '.join(named)}: choose with vhost='{named[0]}'")
        if vhost is not None and vhost not in named:
            raise BrokerError(f"{path} declares nothing in virtual host '{vhost}'; it has {', '.join(named)}")
        moved = {
            name: [
                {**each, "vhost": self.vhost} for each in records if vhost in (None, each.get("vhost", "/"))
            ]
            for name, records in found.items()
        }
        skipped = self.ask("import-definitions", document=moved)["skipped"]
        if skipped:
            raise BrokerError(f"{path} cannot be loaded: {'; '.join(skipped)}")

    def client(self) -> blocking.Client:
        """Return a client of AMQP 1.0 in this virtual host; a context manager."""
        return self._connect("")

    def _connect(self, prefix: str = f"{OWN}-") -> blocking.Client:
        options = ClientOptions(container_id=prefix + made_up_container_id(), hostname=self.hostname)
        return blocking.connect(
            self.host,
            self.port,
            user=self.user,
            password=self.password,
            options=options,
            timeout_s=CLIENT_TIMEOUT_S,
        )

    def publish(
        self, queue: str, *messages: bytes | str | Message, exchange: str | None = None, key: str = ""
    ) -> None:
        """Publish messages and wait until they are accepted. `messages`: whole ones, or bodies of durable
        ones, text in UTF-8. Raises `BrokerError` if one was not accepted, for example because an exchange has
        no queue for it.
        """
        address = queue_address(queue) if exchange is None else exchange_address(exchange, key)
        with self._connect() as client:
            sender = client.sender(address)
            for message in messages:
                sender.send(_message(message))

    def get(self, queue: str, *, within_s: float = 0.0) -> Message | None:
        """Receive a message and accept it. `within_s`: how long to wait for one; 0 takes only what is there.
        Returns the message, with its body as bytes or as the publisher's value; None if there was none.
        """
        found = self.get_many(queue, 1, within_s=within_s)
        return found[0] if found else None

    def get_many(self, queue: str, most: int, *, within_s: float = 0.0) -> Sequence[Message]:
        """Receive up to `most` messages and accept them; arguments as for `get`."""
        with self._connect() as client:
            receiver = client.receiver(queue_address(queue), credit=0)
            deliveries = receiver.fetch(most, timeout_s=within_s)
            for delivery in deliveries:
                receiver.accept(delivery)
            client.flush()
            return [delivery.message() for delivery in deliveries]

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
            # In a channel only consumers have a queue: deliveries by basic.get have none.
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


def _message(given: bytes | str | Message) -> bytes:
    if not isinstance(given, Message):
        # It survives a restart, if the queue does.
        given = Message(given.encode() if isinstance(given, str) else given, header=Header(durable=True))
    return given.encode()


# --- texts of failures and reports ---------------------------------------------------------------


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
