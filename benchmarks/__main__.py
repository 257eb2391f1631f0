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
from typing import Final

from benchmarks import report
from benchmarks.errors import BenchmarkError
from benchmarks.measure import Benchmark, Context
from benchmarks.questions import QUESTIONS
from benchmarks.results import RESULTS, print_table, save, summarise


def _questions_of(module: str) -> Sequence[Benchmark]:
    found = import_module(f"benchmarks.{module}")
    several: Sequence[Benchmark] | None = getattr(found, "BENCHMARKS", None)
    return (found.BENCHMARK,) if several is None else several


# In the order of `--help` and of `all`; a module that is named has one question of its own.
_MODULES: Final = (
    *("protocols", "durability", "millions", "topic", "filters", "storage", "spark_stream", "spark_queue"),
    *("connection_setup", "idle", "article", "sweep", "recommendation"),
    *("recording_cost", "versus", "analyse"),
)
BENCHMARKS: Final[dict[str, Benchmark]] = {
    one.name: one for one in (*QUESTIONS, *chain.from_iterable(map(_questions_of, _MODULES)))
}


def _common_arguments() -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("measuring")
    group.add_argument("--quick", action="store_true", help="a few seconds: does it work, not how fast it is")
    group.add_argument("--repetitions", type=int, help="default 3, with --quick 1")
    group.add_argument("--duration", type=float, help="seconds of a measuring window (3, with --quick 1)")
    group.add_argument("--warmup", type=float, help="seconds thrown away before it (1, with --quick 0.4)")
    group.add_argument(
        "--size", type=int, default=100, help="bytes in a message's data section (%(default)s)"
    )
    group.add_argument("--credit", type=int, default=1000, help="credit of receiving links (%(default)s)")
    group.add_argument(
        "--queue-type",
        choices=("classic", "quorum", "stream"),
        default="classic",
        help="type of the queues, where a question does not choose it itself (%(default)s)",
    )
    group.add_argument("--durable", action="store_true", help="send all messages as durable (persistent)")
    group.add_argument("--no-floor", action="store_true", help="leave out the generator's own limit")
    group.add_argument("--label", help="name of the result file (default: local, with --quick quick)")
    group.add_argument("--results", type=Path, default=RESULTS, help="directory of results (%(default)s)")
    group = parser.add_argument_group("recording flow events")
    group.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="make each measured run a run of this recording (needs pyarrow: the extra record)",
    )
    group.add_argument(
        "--record-every",
        type=int,
        default=50,
        metavar="MS",
        help="how often the broker samples its links; 0: whenever it looks at one (%(default)s)",
    )
    group = parser.add_argument_group("the broker started here")
    group.add_argument(
        "--max-link-credit", type=int, help="default 1000; as in the article: the broker's own"
    )
    group.add_argument("--max-incoming-window", type=int, help="default: the broker's own")
    group.add_argument("--max-queue-credit", type=int, help="default: the broker's own")
    group.add_argument(
        "--data", action="store_true", help="keep what is durable in a data folder (default: all in memory)"
    )
    group.add_argument(
        "--data-root",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where data folders are made; on a disk, for syncs of memory say nothing (%(default)s)",
    )
    group.add_argument(
        "--sync-delay-ms", type=int, default=0, help="with --data: each sync takes so much longer"
    )
    group.add_argument("--broker-arg", action="append", default=[], help="one more argument for the broker")
    group.add_argument("--python", default=sys.executable, help="interpreter of the broker (this one)")
    group = parser.add_argument_group("a broker that runs already")
    group.add_argument("--target", metavar="HOST:PORT", help="load this broker; its queues must be empty")
    group.add_argument("--pid", type=int, help="its process id, for processor time and memory")
    group.add_argument("--user", help="log in with SASL PLAIN (default: ANONYMOUS; in 0-9-1 guest)")
    group.add_argument("--password", default="")
    group.add_argument("--hostname", default="localhost", help="hostname of the open frame (%(default)s)")
    group.add_argument("--vhost", default="/", help="virtual host of AMQP 0-9-1 (%(default)s)")
    group.add_argument("--address", default="{queue}", help="how queue names become addresses (%(default)s)")
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


def _run(benchmark: Benchmark, options: argparse.Namespace) -> int:
    """Run one benchmark, print and save its result; return its exit status: 1 if a case failed."""
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    began = time.monotonic()
    context = Context(options, benchmark.name)
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
    label = options.label or ("quick" if options.quick else "local")
    path = save(benchmark.name, benchmark.question, label, outcome, options.results)
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
    options = parser.parse_args(arguments)
    if options.benchmark is None:
        parser.print_help()
        return 0
    if options.benchmark == "report":
        print(report.write(options.results, options.label))
        return 0
    # SIGTERM unwinds like ctrl-C, so that brokers and load processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = _all() if options.benchmark == "all" else [BENCHMARKS[options.benchmark]]
    try:
        ended = [_run(benchmark, options) for benchmark in chosen]
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return next((status for status in ended if status), 0)


if __name__ == "__main__":
    raise SystemExit(main())
