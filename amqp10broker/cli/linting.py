"""``amqp10broker frames lint``: checks the frames of clients for bad habits."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask, place_of, seconds
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed
from amqp10broker.cli.frames import recording, time_text
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.observe.frames.records import read_lines
from amqp10broker.operations.operation import counted
from amqp10broker.tools.lint.findings import Finding
from amqp10broker.tools.lint.lint import Lint

_WIDTH: Final = 110


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CONNECTION|USER|ADDRESS",
        help="a connection's number, a user's name, a client's address, or the address of links, as for "
        "trace (default: everything)",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=seconds(0, 86_400),
        metavar="SECONDS",
        help="look on for so long, or until ctrl-C (default: 10)",
    )
    parser.add_argument("--file", metavar="FILE", help="look at a recording of frames instead; - is stdin")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    add_where(parser)


def _run(arguments: argparse.Namespace) -> int:
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
    print(f"looking at {next(stream)} for {for_s:g} s", file=sys.stderr, flush=True)
    timer = threading.Timer(for_s, _end, (arguments, what))
    timer.start()
    try:
        for record in read_lines(stream):
            lint.take(record)
    except KeyboardInterrupt:
        print("what came until now:", file=sys.stderr)
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
                f"{counted(answer['left_out'], 'frame')} came faster than they could be looked at: let the "
                f"broker write them with 'amqp10broker frames trace {what} on --frames --file FILE', and "
                "then give --file FILE"
            )
        yield from answer["lines"]


def _end(arguments: argparse.Namespace, what: str) -> None:
    try:
        ask(arguments, "trace", what=what, on=False)
    except BrokerError as error:
        # The connection has ended by itself, or the broker has: the stream has a line about it.
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


COMMANDS: Final = (
    Command(
        "frames lint",
        _arguments,
        _run,
        "Look at the frames of clients, or at a recording of them, for habits that break the protocol, risk "
        "messages, or cost more than they need to: each finding has its frames, why it hurts and what to do. "
        "Exits with 1 if there is one. docs/frames.md lists the rules.",
    ),
)
