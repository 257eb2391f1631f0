"""``amqp10broker record``: begins and ends recording flow events of a running broker, and shows its state."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.commands import Parser
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.config.records import CONFIG_SETTINGS
from amqp10broker.operations.operation import counted

_EVERY: Final = CONFIG_SETTINGS["record_every"]


def _add_every(parser: Parser) -> None:
    parser.add_argument(
        "--every",
        metavar="MS",
        help=f"{_EVERY.help}, {_EVERY.minimum} to {_EVERY.maximum} (default: the broker's, usually 50)",
    )


def _as_seen_from_here(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    # The broker may run in another folder.
    given["folder"] = os.path.abspath(arguments.folder)
    if arguments.every is not None:
        given["every"] = _EVERY.parse(arguments.every, "flag --every")


def _started(arguments: argparse.Namespace, recording: Any) -> str:
    taken = arguments.run not in (None, recording["run_id"])
    there = f" (there is a run {arguments.run} already)" if taken else ""
    return f"recording to {recording['folder']}, run {recording['run_id']}{there}"


def _shown(arguments: argparse.Namespace, answer: Any) -> str:
    recording, failed = answer["recording"], answer.get("failed")
    if arguments.format == "json":
        return json.dumps({"failed": failed} if recording is None and failed else recording, indent=2)
    if recording is not None:
        return f"recording {_sentence(recording)}"
    if failed:
        return (
            f"the broker does not record: the recording to {failed['folder']}, run {failed['run_id']}, "
            f"failed; of {counted(failed['events'], 'event')} {failed['events_lost']} are lost: "
            f"{failed['reason']}"
        )
    return "the broker does not record; 'amqp10broker record start DIR' begins to"


def _sentence(recording: Mapping[str, Any]) -> str:
    return (
        f"to {recording['folder']}, run {recording['run_id']}, "
        f"every {recording['every_ms']} ms: {counted(recording['events'], 'event')}, "
        f"{recording['events_written']} in complete files, {recording['events_dropped']} dropped; observing "
        f"takes {recording['processor_percent']:g} % of a processor, {recording['cost_percent']:g} % of what "
        "the broker uses"
    )


def _add_format(parser: Parser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


CALLS: Final = (
    CommandCall(
        "record-start",
        _started,
        without=("every",),
        more=_add_every,
        prepare=_as_seen_from_here,
        description="Record what the broker's links do, and why they wait, into Parquet files: 'amqp10broker "
        "record analyse DIR' reads them. At intervals, observing takes 2 % of a processor at most; 'record "
        "stop' and 'record status' say what it took. With 'serve --record DIR' it begins with the broker.",
    ),
    CommandCall("record-stop", lambda a, recording: f"recorded {_sentence(recording)}"),
    CommandCall(
        "record-status",
        _shown,
        more=_add_format,
        code=lambda answer: EXIT_FAILED if answer["recording"] is None else EXIT_OK,
        description="Say whether the broker records, and what the recording has cost. The exit code is 1 if "
        "it does not record, and the reason is shown if a recording failed.",
    ),
)
