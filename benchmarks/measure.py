"""Measuring: one window of steady state, sampled at its two ends, and what the questions share.

A `Context` is one run of one benchmark: its options, the brokers it starts, where progress is told.
`window` drives one load against one target: warm-up is thrown away, then counters, processor time and
memory are read at the start and at the end of the window, never over the life of a process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings, OwnBroker, RunningBroker, Target
from benchmarks.errors import MeasureError
from benchmarks.load import Latency, LoadProcess, LoadResult
from benchmarks.processes import process_cpu_s
from benchmarks.queues091 import Queues
from benchmarks.recording import RecordedRun, Recording
from benchmarks.results import Outcome, Row
from benchmarks.stream import Counts

# How often the counters are looked at while waiting for the end of a window.
_LOOK_S: Final = 0.01
# A load gets this much longer than it should need before it ends by itself.
_SPARE_S: Final = 60.0
_STALL_S: Final = 20.0

STANDARD_COLUMNS: Final = (
    "rate_per_s",
    "cpu_us",
    "helper_cpu_us",
    "load_cpu_us",
    "broker_busy",
    "confirm_p50_ms",
    "confirm_p99_ms",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "rss_mb",
    "disk_mb",
)


Arguments = argparse.ArgumentParser | argparse._ArgumentGroup


def options(**known: tuple[Any, ...]) -> Callable[[Arguments], None]:
    """Return what adds the options of a question to the command line.

    Args:
        **known: the default and the help text of each, and the values to choose from, if not all will do.
            A list takes several values, () may be given several times, False is a flag, and a type has no
            default: the text says what happens then.
    """

    def add(parser: Arguments) -> None:
        for name, (default, text, *choices) in known.items():
            # Names with a hyphen are flags already: those of the article carry a benchmark's name.
            flag = f"--{name if '-' in name else name.replace('_', '-')}"
            first = (*default, 0)[0] if isinstance(default, list) else default
            if isinstance(default, type):
                parser.add_argument(flag, type=default, help=text)
            elif default == ():
                parser.add_argument(flag, action="append", default=[], help=text)
            elif default is False:
                parser.add_argument(flag, action="store_true", help=text)
            else:
                many = "+" if isinstance(default, list) else None
                shown = f"{text} (%(default)s)".strip()
                among = choices[0] if choices else None
                kind = Path if isinstance(first, Path) else type(first)
                parser.add_argument(flag, type=kind, nargs=many, default=default, help=shown, choices=among)

    return add


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One question: how it is called, what it asks, how it is answered."""

    name: str
    question: str
    run: Callable[[Context], Outcome]
    add_arguments: Callable[[Arguments], None] = lambda parser: None
    in_all: bool = True
    """Whether it is one of those that `all` stands for."""


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between the two ends of a measuring window."""

    seconds: float
    counts: tuple[Counts, ...]
    """Differences, one for each stream."""
    cpu_s: float | None
    load_cpu_s: float
    rss_bytes: int | None
    result: LoadResult
    """Totals and latencies, as the load process told them when it was stopped."""
    helper_cpu_s: float | None = None
    """Of the processes that the broker has started."""
    disk_bytes: int | None = None
    bytecodes: int | None = None
    """Difference of the broker's count."""

    def row(self, case: str, target: str, messages: int, stream: int = 0) -> Row:
        """Return the sample of this window.

        Args:
            case: what was measured.
            target: "broker" or "floor".
            messages: messages that count, by which rate and cost are divided.
            stream: the stream whose latencies are told.
        """
        if messages <= 0:
            raise MeasureError(f"{case}: no message moved in {self.seconds:.1f} s")
        row: Row = {
            "case": case,
            "target": target,
            "seconds": self.seconds,
            "messages": messages,
            "rate_per_s": messages / self.seconds,
            "cpu_us": None if self.cpu_s is None else self.cpu_s / messages * 1e6,
            "load_cpu_us": self.load_cpu_s / messages * 1e6,
            "broker_busy": None if self.cpu_s is None else self.cpu_s / self.seconds,
            "helper_cpu_us": None if self.helper_cpu_s is None else self.helper_cpu_s / messages * 1e6,
            "rss_mb": None if self.rss_bytes is None else self.rss_bytes / 1e6,
            "disk_mb": None if self.disk_bytes is None else self.disk_bytes / 1e6,
            "bytecodes": None if self.bytecodes is None else self.bytecodes / messages,
        }
        row |= _latency("confirm", self.result.confirm[stream])
        row |= _latency("delivery", self.result.delivery[stream])
        return row


def _latency(name: str, latency: Latency | None) -> Row:
    if latency is None:
        return {}
    return {
        f"{name}_p50_ms": latency.p50_ms,
        f"{name}_p99_ms": latency.p99_ms,
        f"{name}_p999_ms": latency.p999_ms,
        f"{name}_max_ms": latency.max_ms,
        f"{name}_samples": latency.samples,
    }


def window(
    target: Target,
    what: spec.Load,
    *,
    warmup_s: float,
    duration_s: float,
    until: Callable[[tuple[Counts, ...]], bool] | None = None,
    at_end: Callable[[], None] | None = None,
    record: bool = False,
) -> Window:
    """Run a load against a target and measure it in steady state.

    Args:
        target: the broker.
        what: the load; it gets a time limit of its own.
        warmup_s: thrown away.
        duration_s: longest length of the window.
        until: ends warm-up or window early, for loads that run out of messages.
        at_end: called when the window is over and the load has not yet been stopped.
        record: keep the clients' flow events; they are in the result.

    Raises:
        LoadError: the load process failed.
        MeasureError: `until` was reached before the window began.
    """
    what = replace(what, seconds_max=warmup_s + duration_s + _SPARE_S, record=record)
    with LoadProcess(what) as process:

        def counts() -> tuple[Counts, ...]:
            return tuple(process.counts(stream) for stream in range(what.streams))

        def wait(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if until is not None and until(counts()):
                    return
                time.sleep(min(_LOOK_S, max(0.0, end - time.monotonic())))

        process.start()
        wait(warmup_s)
        if until is not None and until(counts()):
            raise MeasureError(f"{what.name}: the messages were used up before the warm-up was over")
        process.mark()
        before, began = counts(), time.monotonic()
        cpu_before, load_before = target.cpu_s(), process_cpu_s(process.pid)
        helper_before, codes_before = target.helper_cpu_s(), target.bytecodes()
        wait(duration_s)
        after, ended = counts(), time.monotonic()
        if record:
            process.end_window()
        cpu_after, load_after = target.cpu_s(), process_cpu_s(process.pid)
        helper_after, codes_after = target.helper_cpu_s(), target.bytecodes()
        rss_bytes, disk_bytes = target.rss_bytes(), target.disk_bytes()
        if at_end is not None:
            at_end()
        result = process.stop()
    return Window(
        ended - began,
        tuple(a - b for a, b in zip(after, before, strict=True)),
        None if cpu_after is None or cpu_before is None else cpu_after - cpu_before,
        load_after - load_before,
        rss_bytes,
        result,
        None if helper_after is None or helper_before is None else helper_after - helper_before,
        disk_bytes,
        None if codes_after is None or codes_before is None else codes_after - codes_before,
    )


class Done(NamedTuple):
    """A load that was carried through."""

    seconds: float
    cpu_s: float
    """The broker's processor time; 0 if it is not known."""


def carry_through(
    target: Target, connections: spec.Connections, count: int, counter: str, *, name: str
) -> Done:
    """Run a load until the counter of this name has reached `count` on stream 0.

    Raises:
        MeasureError: nothing has moved for a while, or the broker has refused a message.
    """
    what = spec.Load(target.endpoint, connections, seconds_max=1800.0, name=name)
    with LoadProcess(what) as process:
        cpu_s, began = target.cpu_s() or 0.0, time.monotonic()
        process.start()
        last, since = -1, began
        while (now := getattr(process.counts(), counter)) < count:
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > _STALL_S:
                raise MeasureError(f"nothing moved for {_STALL_S:g} s: {process.counts()}")
            time.sleep(_LOOK_S)
        done = Done(time.monotonic() - began, (target.cpu_s() or 0.0) - cpu_s)
        result = process.stop()
    if result.counts[0].refused:
        raise MeasureError(f"the broker did not accept {result.counts[0].refused} of {count} messages")
    return done


def preload(
    target: Target,
    addresses: Sequence[str],
    count: int,
    *,
    size_bytes: int = 100,
    durable: bool = False,
    amqp091: bool = False,
) -> Done:
    """Put `count` messages into the queues, evenly, and wait until each is confirmed.

    Args:
        target: the broker.
        addresses: of the queues; their names with `amqp091`.
        count: messages in all.
        size_bytes: of each body.
        durable: send them as durable.
        amqp091: publish them over AMQP 0-9-1: a broker keeps a message as it was published, and giving it
            out in the other protocol costs a conversion.
    """
    if count == 0:
        return Done(0.0, 0.0)
    group = spec.Publish(tuple(addresses), size_bytes=size_bytes, durable=durable, count_max=count, burst=256)
    connections = (spec.connection(group, amqp091=amqp091),)
    return carry_through(target, connections, count, "confirmed", name="preload")


def drain(target: Target, addresses: Sequence[str], *, quiet_s: float = 1.0) -> int:
    """Take every message out of the queues; done when nothing has come for `quiet_s`."""
    sessions = spec.connection(spec.Consume(tuple(addresses)))
    with LoadProcess(spec.Load(target.endpoint, (sessions,), seconds_max=900.0, name="drain")) as process:
        process.start()
        last, since = 0, time.monotonic()
        while time.monotonic() - since < quiet_s:
            now = process.counts().delivered
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(_LOOK_S)
        process.stop()
    return last


class Context:
    """One run of one benchmark."""

    def __init__(self, options: argparse.Namespace, benchmark: str = "") -> None:
        """Take the options that `__main__` has parsed; a benchmark finds its own among them.

        Args:
            options: all of them.
            benchmark: its name, as recordings have it.
        """
        self.options = options
        self.recording = self._recording(benchmark)
        quick: bool = options.quick
        self.quick = quick
        self.repetitions: int = options.repetitions or (1 if quick else 3)
        self.duration_s: float = options.duration or (1.0 if quick else 3.0)
        self.warmup_s: float = options.warmup if options.warmup is not None else (0.4 if quick else 1.0)
        self.size_bytes: int = options.size
        self.with_floor: bool = not options.no_floor

    @property
    def own(self) -> bool:
        """Whether the brokers are started here (and not by `--target`)."""
        return self.options.target is None

    def settings(self, max_link_credit: int | None = 1000) -> BrokerSettings:
        """Return the broker's settings as the command line gives them.

        Args:
            max_link_credit: what this benchmark takes if the command line says nothing; None is the
                broker's own default.
        """
        return BrokerSettings(
            max_link_credit=self.options.max_link_credit or max_link_credit,
            max_incoming_window=self.options.max_incoming_window,
            max_queue_credit=self.options.max_queue_credit,
            data_root=self.options.data_root if self.options.data else None,
            sync_delay_ms=self.options.sync_delay_ms if self.options.data else 0,
            extra=tuple(self.options.broker_arg),
        )

    def _recording(self, benchmark: str) -> Recording | None:
        """Return the recording that the command line asks for, None if it asks for none."""
        folder: Path | None = self.options.record
        if folder is None:
            return None
        return Recording(
            folder, benchmark, self.options.record_every, self.own, self.settings(max_link_credit=None)
        )

    def new_run(self, case: str) -> RecordedRun | None:
        """Return a new run of the recording; None if nothing is recorded."""
        return None if self.recording is None else self.recording.begin(case)

    @property
    def queue_type(self) -> str:
        """The type of the queues of a case that names none."""
        return str(self.options.queue_type)

    @property
    def durable(self) -> bool:
        """Whether all messages are sent as durable (persistent in 0-9-1)."""
        return bool(self.options.durable)

    def described_settings(self) -> dict[str, object]:
        """Return what of the options belongs in the result."""
        return {
            **{key: value for key, value in vars(self.options).items() if _is_plain(key, value)},
            "repetitions": self.repetitions,
            "duration": self.duration_s,
            "warmup": self.warmup_s,
        }

    def address(self, queue: str) -> str:
        """Return the address of a queue, as the broker under test wants it written."""
        return str(self.options.address).replace("{queue}", queue)

    @contextmanager
    def target(
        self,
        settings: BrokerSettings | None = None,
        *,
        queues: Sequence[str] = ("bench",),
        amqp091: bool = False,
        run: RecordedRun | None = None,
    ) -> Iterator[OwnBroker | RunningBroker]:
        """Give a broker with empty queues: a fresh process, or the running one, emptied afterwards.

        Args:
            settings: of a fresh process; None takes those of the command line.
            queues: what the running one must be rid of.
            amqp091: empty them over AMQP 0-9-1.
            run: the run that a fresh process records.
        """
        options = self.options
        if self.own:
            with OwnBroker(
                settings or self.settings(),
                options.python,
                options.user,
                options.password or "",
                recording=() if run is None else run.broker_arguments(),
            ) as broker:
                yield broker
            return
        host, _, port = options.target.rpartition(":")
        endpoint = spec.Endpoint(
            host, int(port), options.user, options.password or "", options.hostname, options.vhost
        )
        running = RunningBroker(endpoint, options.pid)
        yield running
        if amqp091:
            with Queues(endpoint) as known:
                known.purge(queues)
        else:
            drain(running, [self.address(queue) for queue in queues])

    @contextmanager
    def floor(self, *arguments: str) -> Iterator[OwnBroker]:
        """Give the floor peer."""
        settings = BrokerSettings(max_link_credit=self.options.max_link_credit or 1000)
        with OwnBroker(settings, floor=arguments) as floor:
            yield floor

    def floor_window_s(self) -> tuple[float, float]:
        """Return warm-up and length of a window at the floor: it needs no long one."""
        return min(self.warmup_s, 0.3), min(self.duration_s, 1.0)

    def say(self, text: str) -> None:
        """Tell progress."""
        print(f"  {text}", file=sys.stderr, flush=True)

    def say_row(self, row: Row) -> None:
        """Tell one sample that was measured."""
        cpu = "" if row.get("cpu_us") is None else f", {row['cpu_us']:.2f} µs CPU/msg"
        self.say(f"{row['target']:6} {row['case']:32} {row['rate_per_s']:>12,.0f} msgs/s{cpu}")


_NOT_SETTINGS: Final = frozenset({"python", "password", "results", "quick", "label", "no_floor", "benchmark"})


def _is_plain(key: str, value: object) -> bool:
    return key not in _NOT_SETTINGS and isinstance(value, str | int | float | list | tuple | None)
