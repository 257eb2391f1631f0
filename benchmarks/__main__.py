"""`python -m benchmarks`: list the questions, run one or all, make the report."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.errors import BenchmarkError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.questions import QUESTIONS
from benchmarks.results import RESULTS, print_table, save, summarise


def _questions_of(module: str) -> Sequence[Benchmark]:
    found = import_module(f"benchmarks.{module}")
    several: Sequence[Benchmark] | None = getattr(found, "BENCHMARKS", None)
    return (found.BENCHMARK,) if several is None else several


# In the order of `--help` and of `all`; a module that is named has one question of its own.
_MODULES: Final = (*("durability", "article", "sweep", "versus", "cluster", "spark_stream", "spark_queue"),)
BENCHMARKS: Final[dict[str, Benchmark]] = {
    one.name: one for one in (*QUESTIONS, *chain.from_iterable(map(_questions_of, _MODULES)))
}


_QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_COMMON: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "measuring": {
        "quick": (False, "a few seconds: does it work, not how fast it is"),
        "repetitions": (int, "default 3, with --quick 1"),
        "duration": (float, "seconds of a measuring window (3, with --quick 1)"),
        "warmup": (float, "seconds thrown away before it (1, with --quick 0.4)"),
        "size": (100, "bytes in a message's data section"),
        "credit": (1000, "credit of receiving links"),
        "queue_type": ("classic", "of queues whose type a question does not choose itself", _QUEUE_TYPES),
        "durable": (False, "send all messages as durable (persistent)"),
        "no_floor": (False, "leave out the generator's own limit"),
        "label": (str, "name of the result file (default: local, with --quick quick)"),
        "results": (RESULTS, "directory of results"),
    },
    "recording flow events": {
        "record": (Path, "make each measured run a run of the recording in this folder (needs pyarrow)"),
        "record_every": (50, "milliseconds between two looks of the broker at its links"),
    },
    "the broker started here": {
        "max_link_credit": (int, "default 1000; as in the article: the broker's own"),
        "max_incoming_window": (int, "default: the broker's own"),
        "max_queue_credit": (int, "default: the broker's own"),
        "data": (False, "keep what is durable in a data folder (default: all in memory)"),
        "data_root": (
            Path(tempfile.gettempdir()),
            "where data folders are made; on a disk, for syncs of memory say nothing",
        ),
        "sync_delay_ms": (0, "with --data: each sync takes so much longer"),
        "broker_arg": ((), "one more argument for the broker"),
        "python": (sys.executable, "interpreter of the broker"),
    },
    "a broker that runs already": {
        "target": (str, "HOST:PORT: load this broker; its queues must be empty"),
        "pid": (int, "its process id, for processor time and memory"),
        "user": (str, "log in with SASL PLAIN (default: ANONYMOUS; in 0-9-1 guest)"),
        "password": ("", "of that user"),
        "hostname": ("localhost", "hostname of the open frame"),
        "vhost": ("/", "virtual host of AMQP 0-9-1"),
        "address": ("{queue}", "how queue names become addresses"),
    },
}


def _common_arguments() -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    parser = argparse.ArgumentParser(add_help=False)
    for title, known in _COMMON.items():
        options(**known)(parser.add_argument_group(title))
    return parser


def _all() -> list[Benchmark]:
    return [benchmark for benchmark in BENCHMARKS.values() if benchmark.in_all]


def parser_of_all() -> argparse.ArgumentParser:
    """Return the command line, with every question as a command."""
    common = _common_arguments()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Load programs for AMQP 1.0 and 0-9-1."
    )
    commands = parser.add_subparsers(dest="benchmark", metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        one = commands.add_parser(name, parents=[common], help=benchmark.question)
        benchmark.add_arguments(one.add_argument_group(name))
    every = commands.add_parser("all", parents=[common], help="every one of them, one after the other")
    for benchmark in _all():
        benchmark.add_arguments(every.add_argument_group(benchmark.name))
    made = commands.add_parser("report", help="write results/README.md from the results")
    made.add_argument("--results", type=Path, default=RESULTS)
    made.add_argument("--label", help="only results with this label (default: all but quick ones)")
    return parser


def _run(benchmark: Benchmark, asked: argparse.Namespace) -> int:
    """Run one benchmark, print and save its result; return its exit status: 1 if a case failed."""
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    began = time.monotonic()
    context = Context(asked, benchmark.name)
    try:
        if context.recording is not None:
            context.recording.check()
        outcome = benchmark.run(context)
    except BenchmarkError as error:
        print(f"{benchmark.name} failed: {error}", file=sys.stderr)
        return 1
    failed = [sample for sample in outcome.samples if "failed" in sample]
    outcome.notes += [f"{one['case']} ({one['target']}) failed: {one['failed']}" for one in failed]
    if not outcome.rows:
        keys = [key for key, value in _numbers(outcome.samples)]
        outcome.rows = summarise(outcome.samples, list(dict.fromkeys(keys)))
    print_table(outcome)
    label = asked.label or ("quick" if asked.quick else "local")
    path = save(benchmark.name, benchmark.question, label, outcome, asked.results)
    print(f"{path} ({time.monotonic() - began:.0f} s)")
    return 1 if failed else outcome.status


def _numbers(samples: Sequence[dict[str, object]]) -> list[tuple[str, float]]:
    """Return every figure of the samples."""
    return [
        (key, value)
        for sample in samples
        for key, value in sample.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = parser_of_all()
    asked = parser.parse_args(arguments)
    if asked.benchmark is None:
        parser.print_help()
        return 0
    if asked.benchmark == "report":
        print(report.write(asked.results, asked.label))
        return 0
    # SIGTERM unwinds like ctrl-C, so that brokers and load processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = _all() if asked.benchmark == "all" else [BENCHMARKS[asked.benchmark]]
    try:
        ended = [_run(benchmark, asked) for benchmark in chosen]
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return next((status for status in ended if status), 0)


if __name__ == "__main__":
    raise SystemExit(main())
