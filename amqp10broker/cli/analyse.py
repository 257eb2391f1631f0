"""``record analyse``: credits and windows of a recording, with Spark."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from amqp10broker import portable
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK, Unreachable
from amqp10broker.errors import ConfigError

_MEMORY: Final = re.compile(r"[1-9]\d*[mg]")
_MEMORY_LEAST_MB: Final = 512
"""The least memory: Spark itself needs 450 MB of the memory that Java reports."""
_AIM: Final = "throughput"
_MASTER: Final = re.compile(r"local(\[(\*|[1-9]\d*)\])?|spark://(127\.0\.0\.1|localhost):\d+")


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="folder of the recording, as given to serve --record"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="folder for the report and tables (default: DIR/analysis)"
    )
    aim = parser.add_argument_group("goal of the recommended settings:")
    aim.add_argument(
        "--aim", choices=("throughput", "latency", "memory"),
        help="most messages; lowest p99 at --rate; least memory with --keep of it (default: throughput)",
    )  # fmt: skip
    aim.add_argument("--rate", metavar="N", type=float, help="rate in messages per second, for --aim latency")
    aim.add_argument(
        "--keep",
        metavar="SHARE",
        type=float,
        help="share of the best throughput that must remain, for --aim memory (default: 0.95)",
    )
    follow = parser.add_argument_group("analyse the recording while it is being written")
    follow.add_argument(
        "--follow", action="store_true", help="print a line for each second and run, until Ctrl-C"
    )
    follow.add_argument(
        "--late", metavar="SECONDS", type=int,
        help="how long to wait for late files before a second is printed, with --follow (default: 15)",
    )  # fmt: skip
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        default="local[*]",
        help="local[N], local[*] or spark://127.0.0.1:PORT (default: local[*])",
    )
    spark.add_argument(
        "--memory", default="2g", metavar="SIZE", help="memory of the JVM, such as 512m or 4g (default: 2g)"
    )
    parser.add_argument("--quiet", action="store_true", help="do not show progress")


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    from amqp10broker.tools.analysis.session import CannotStart, check_installed

    try:
        # Before a recording is read, which needs one of the packages and would not name the others.
        check_installed()
        return _follow(arguments) if arguments.follow else _batch(arguments)
    except CannotStart as error:
        raise Unreachable(str(error)) from error


def _check(arguments: argparse.Namespace) -> None:
    aim, rate, keep = arguments.aim or _AIM, arguments.rate, arguments.keep
    if arguments.follow and arguments.aim is not None:
        raise ConfigError("--aim", "cannot be used with --follow", "leave out one of them")
    if aim == "latency" and (rate is None or not 0 < rate < float("inf")):
        raise ConfigError("--aim latency", "needs --rate", "give the rate in messages per second, above 0")
    if aim != "latency" and rate is not None:
        raise ConfigError("--rate", f"cannot be used with --aim {aim}", "it belongs to --aim latency")
    if aim != "memory" and keep is not None:
        raise ConfigError("--keep", f"cannot be used with --aim {aim}", "it belongs to --aim memory")
    if keep is not None and not 0 < keep <= 1:
        raise ConfigError("--keep", f"is {keep:g}", "must be above 0, and 1 at most")
    if not _MASTER.fullmatch(arguments.master):
        allowed = "must be local[N], local[*] or spark://127.0.0.1:PORT"
        raise ConfigError("--master", f"is {arguments.master!r}", allowed)
    _check_memory(arguments.memory)
    if arguments.late is not None and not arguments.follow:
        raise ConfigError("--late", "cannot be used without --follow", "give --follow, too")
    if arguments.late is not None and arguments.late < 0:
        raise ConfigError("--late", f"is {arguments.late}", "must be 0 or more seconds")


def _check_memory(text: str) -> None:
    if not _MEMORY.fullmatch(text):
        raise ConfigError("--memory", f"is {text!r}", "must be a number and m or g, such as 2g")
    asked = int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]
    there = portable.machine_memory()
    if asked < _MEMORY_LEAST_MB << 20:
        raise ConfigError("--memory", f"is {text}", f"give at least {_MEMORY_LEAST_MB}m, which Spark needs")
    if there is not None and asked > there:
        raise ConfigError(
            "--memory", f"is {text}", f"give at most {there >> 20}m, the memory of this machine"
        )


def _batch(arguments: argparse.Namespace) -> int:
    from amqp10broker.tools.analysis.recommend import Aim, all_told
    from amqp10broker.tools.analysis.report import ProgressLines, analyse, find_recording, make_folder
    from amqp10broker.tools.analysis.session import command_session

    progress = ProgressLines(None if arguments.quiet else sys.stderr)
    output = arguments.output or arguments.folder / "analysis"
    # This comes before Java is started, which takes seconds.
    find_recording(arguments.folder)
    make_folder(output)
    aim = Aim(arguments.aim or _AIM, arguments.rate, 0.95 if arguments.keep is None else arguments.keep)
    progress.say("starting Spark")
    with command_session(arguments.master, arguments.memory) as spark:
        result = analyse(arguments.folder, output, aim, spark, progress)
    print(all_told(result.recommended))
    print(f"report: {result.report}")
    return EXIT_OK


def _follow(arguments: argparse.Namespace) -> int:
    from amqp10broker.tools.analysis.follow import LATE_S, check_folder, follow
    from amqp10broker.tools.analysis.report import ProgressLines
    from amqp10broker.tools.analysis.session import command_session

    progress = ProgressLines(None if arguments.quiet else sys.stderr)
    output = arguments.output or arguments.folder / "analysis"
    late_s = LATE_S if arguments.late is None else arguments.late
    if not check_folder(arguments.folder):
        progress.warn(
            f"{arguments.folder} has no recording yet: waiting for `serve --record`; if the name is wrong, "
            "press Ctrl-C"
        )
    progress.say("starting Spark")
    with command_session(arguments.master, arguments.memory) as spark:
        follow(
            arguments.folder,
            output,
            spark,
            progress,
            tell=lambda line: print(line, flush=True),
            late_s=late_s,
        )
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "record analyse",
        _arguments,
        _run,
        "Recommend max_link_credit, max_incoming_window and max_queue_credit from a recording of flow "
        "events. Writes a report (one HTML file) and tables (CSV, Parquet). Needs the extra spark and Java "
        "17 or newer. Exit codes: 1 nothing to analyse, 2 wrong usage, 3 Java or a package is missing or "
        "Java does not start, 130 Ctrl-C.",
    ),
)
