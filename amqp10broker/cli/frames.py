"""Frames of clients: ``frames trace``, ``print``, ``lint``, and ``upgrade-check``.

`amqp10broker.tools` is imported when a command runs: printing a recording needs none of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.commands import Command, Parser, add_format, add_where, ask, place_of, seconds
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.observe.frames.records import Ended, KnownLink, Listening, Record, read_lines
from amqp10broker.operations.operation import counted

if TYPE_CHECKING:
    from amqp10broker.tools.lint import Finding, Lint


_NS: Final = 1_000_000_000


@contextmanager
def recording(path: str) -> Iterator[Iterator[Record]]:
    if path == "-":
        yield read_lines(sys.stdin)
        return
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115, closed below
    except OSError as error:
        raise BrokerError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield read_lines(file)


def time_text(at_ns: int) -> str:
    """Format a time to the microsecond, as ``trace`` does."""
    whole = datetime.fromtimestamp(at_ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{at_ns % _NS // 1000:06d}Z"


def _print_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file of the recording; - for standard input")
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="show only this connection (default: all)"
    )


def _print(arguments: argparse.Namespace) -> int:
    with recording(arguments.file) as records:
        for record in records:
            if arguments.connection in (None, record.connection):
                print(f"{time_text(record.at_ns)} connection {record.connection} {_text(record)}")
    return EXIT_OK


def _text(record: Record) -> str:
    if isinstance(record, Listening):
        begins = "begins" if record.begins else "is traced from here on"
        return f"({record.peer}) {begins}"
    if isinstance(record, KnownLink):
        return f"has a {record.role} '{record.name}' on channel {record.channel}, {record.address}"
    if isinstance(record, Ended):
        return f"has ended: {record.reason}"
    return record.text


def _trace_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        metavar="CONNECTION|USER|ADDRESS|everything",
        help="a connection's number ('connection list'), a user, a client's address (127.0.0.1, or with its "
        "port), or the address of links (/queues/orders, /exchanges/shop/*)",
    )
    parser.add_argument("switch", choices=("on", "off"), metavar="on|off", help="begin a trace, or end it")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="file that the broker writes, until 'off' or 1 GiB (default: this terminal, until Ctrl-C)",
    )
    parser.add_argument(
        "--frames",
        action="store_true",
        help="write one JSON object per line, without message contents, for the other 'frames' commands",
    )
    add_where(parser)


def _trace(arguments: argparse.Namespace) -> int:
    given = {"what": arguments.what, "on": arguments.switch == "on"}
    if arguments.frames:
        given["frames"] = True
    if not given["on"]:
        if arguments.file is not None or arguments.frames:
            flag = "--frames" if arguments.file is None else "--file"
            raise ConfigError(f"flag {flag}", "cannot be used with off", "leave it out")
        ended = ask(arguments, "trace", **given)
        print(f"{ended['target']} was traced to {ended['into']}: {counted(ended['lines'], 'line')}")
        return EXIT_OK
    if arguments.file is not None:
        # The broker may run in another folder.
        begun = ask(arguments, "trace", **given, file=os.path.abspath(arguments.file))
        print(f"tracing {begun['target']} to {begun['into']}")
        return EXIT_OK
    return _trace_here(arguments, given)


def _trace_here(arguments: argparse.Namespace, given: dict[str, Any]) -> int:
    import sys

    from amqp10broker.cli import admin

    answers = admin.ask_stream(place_of(arguments), {"op": "trace", "arguments": given})
    try:
        print(f"tracing {next(answers)['target']} until Ctrl-C", file=sys.stderr, flush=True)
        for answer in answers:
            print("".join(f"{line}\n" for line in answer["lines"]), end="", flush=True)
            if answer["left_out"]:
                left_out = counted(answer["left_out"], "line")
                print(f"... {left_out} frames not shown: too many for this terminal, use --file", flush=True)
            if answer["ended"] is not None:
                print(f"the trace has ended: {answer['ended']}", file=sys.stderr)
                return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_OK
    print("the broker has stopped", file=sys.stderr)
    return EXIT_FAILED


_WIDTH: Final = 110


def _lint_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CONNECTION|USER|ADDRESS",
        help="what to check, as for trace (default: everything)",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=seconds(0, 86_400),
        metavar="SECONDS",
        help="how long to check, or until Ctrl-C (default: 10)",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="check a recording of frames instead; - for standard input"
    )
    add_format(parser)
    add_where(parser)


def _lint(arguments: argparse.Namespace) -> int:
    from amqp10broker.tools.lint import Lint

    lint = Lint()
    if arguments.file is None:
        findings = _look_on(arguments, lint)
    else:
        if arguments.what is not None or arguments.for_s is not None:
            flag = "--for" if arguments.what is None else arguments.what
            raise ConfigError(f"lint {flag}", "is given with --file", "give either")
        with recording(arguments.file) as records:
            for record in records:
                lint.take(record)
            findings = lint.finish(0)
    if arguments.format == "json":
        print(json.dumps([_document(each) for each in findings], indent=2))
    else:
        print(_page(findings), end="")
        seen = f"{counted(lint.frames, 'frame')} of {counted(lint.connections, 'connection')}"
        print(f"{counted(len(findings), 'finding')} in {seen}")
    return EXIT_FAILED if findings else EXIT_OK


def _look_on(arguments: argparse.Namespace, lint: Lint) -> list[Finding]:
    import threading

    what = arguments.what or "everything"
    for_s = 10.0 if arguments.for_s is None else arguments.for_s
    stream = _stream(arguments, what)
    print(f"checking {next(stream)} for {for_s:g} s", file=sys.stderr, flush=True)
    timer = threading.Timer(for_s, _end, (arguments, what))
    timer.start()
    try:
        for record in read_lines(stream):
            lint.take(record)
    except KeyboardInterrupt:
        print("findings so far:", file=sys.stderr)
    finally:
        timer.cancel()
    return lint.finish(time.time_ns())


def _stream(arguments: argparse.Namespace, what: str) -> Iterator[str]:
    from amqp10broker.cli import admin

    given = {"what": what, "on": True, "frames": True}
    answers = admin.ask_stream(place_of(arguments), {"op": "trace", "arguments": given})
    yield str(next(answers)["target"])
    for answer in answers:
        if answer["left_out"]:
            raise Failed(
                f"{counted(answer['left_out'], 'frame')} were not checked, since they came too fast: let "
                f"the broker write them with 'amqp10broker frames trace {what} on --frames --file FILE', "
                "and then give --file FILE"
            )
        yield from answer["lines"]


def _end(arguments: argparse.Namespace, what: str) -> None:
    try:
        ask(arguments, "trace", what=what, on=False)
    except BrokerError as error:
        # The connection or the broker has ended: the stream has a line about it.
        print(error, file=sys.stderr)


def _document(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "rule": rule.id,
        "sort": rule.sort.value,
        "connection": finding.connection or None,
        "where": finding.where,
        "said": finding.said,
        "why": rule.why,
        "to_do": rule.to_do,
        "evidence": [{"at_ns": each.at_ns, "frame": each.text} for each in finding.evidence],
    }


def _page(findings: Sequence[Finding]) -> str:
    lines: list[str] = []
    for finding in findings:
        rule = finding.rule
        whose = f"connection {finding.connection}" if finding.connection else ""
        where = ", ".join(each for each in (whose, finding.where) if each)
        lines.append(f"{rule.sort.value}: {rule.id}: {where}")
        lines += _wrapped("", finding.said)
        lines += _wrapped("why:   ", rule.why)
        lines += _wrapped("to do: ", rule.to_do)
        lines += [f"       {time_text(each.at_ns)} {each.text}" for each in finding.evidence]
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {label}", subsequent_indent="  " + " " * len(label))


_UPGRADE_COLUMNS: Final = ("state", "finding", "kind", "who", "vhost", "what", "to_do")


def _upgrade_arguments(parser: Parser) -> None:
    from amqp10broker.cli.calls import add_formatter
    from amqp10broker.emulation import VERSIONS

    parser.add_argument(
        "--to", choices=VERSIONS, default=VERSIONS[-1], help=f"version of RabbitMQ (default: {VERSIONS[-1]})"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="check a recording of frames instead of a running broker; - for standard input",
    )
    add_formatter(parser)
    add_where(parser)


def _upgrade_check(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli.calls import on_terminal
    from amqp10broker.emulation import ChangeState

    found = (
        ask(arguments, "upgrade-check", to=arguments.to) if arguments.file is None else _recorded(arguments)
    )
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    else:
        sys.stdout.write(
            tables.render(_UPGRADE_COLUMNS, found["findings"], arguments.format, **on_terminal())
        )
    denied = any(each["state"] == ChangeState.DENIED for each in found["findings"])
    return EXIT_FAILED if denied else EXIT_OK


def _recorded(arguments: argparse.Namespace) -> dict[str, Any]:
    from amqp10broker.emulation import Upgrade
    from amqp10broker.operations.snapshot import document
    from amqp10broker.tools.upgrade import RecordedUses

    upgrade = Upgrade(arguments.to)
    uses = RecordedUses(upgrade)
    with recording(arguments.file) as records:
        for record in records:
            uses.take(record)
    return {"to": arguments.to, "findings": [document(each) for each in upgrade.findings()]}


COMMANDS: Final = (
    Command(
        "frames print",
        _print_arguments,
        _print,
        "Print a recording of 'trace WHAT on --frames --file FILE' or 'serve --record-frames DIR'. It "
        "contains the sizes of messages, not their contents.",
    ),
    Command(
        "frames trace",
        _trace_arguments,
        _trace,
        "Show every frame of a connection, of a user's connections, of a client's address, or of the links "
        "to an address, of both protocols, from now on. Passwords, tokens and other secrets are left out; "
        "properties of messages and the first 32 bytes of each body are shown. Frames that are not traced "
        "cost nothing. 'serve --trace-frames' writes every frame to the log.",
    ),
    Command(
        "frames lint",
        _lint_arguments,
        _lint,
        "Check frames of clients, or a recording of them, for habits that break the protocol, risk "
        "messages, or cost too much. Each finding has its frames, the harm and the remedy. The exit code "
        "is 1 if there is a finding. docs/frames.md lists the rules.",
    ),
    Command(
        "upgrade-check",
        _upgrade_arguments,
        _upgrade_check,
        "Print which connected clients (with --file: recorded clients), queues and policies use a feature "
        "that a version of RabbitMQ refuses or changes, the worst first: the state of the feature (denied, "
        "changed, deprecated), the client, queue or policy, and the remedy. The exit code is 1 if "
        "something is denied.",
    ),
)
