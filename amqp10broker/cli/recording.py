"""``amqp10broker record``: begin and end recording flow events of a running broker, and show how it goes."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask, counted
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.config.records import CONFIG_SETTINGS


def _arguments(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    start = actions.add_parser("start", help="begin to record", allow_abbrev=False)
    start.add_argument("folder", metavar="DIR", help="where to, made if it is not there")
    every = CONFIG_SETTINGS["record_every"]
    start.add_argument(
        "--every",
        metavar="MS",
        help=f"{every.help}, {every.minimum} to {every.maximum} (default: the broker's, usually 50; 0: "
        f"{every.zero_means})",
    )
    start.add_argument(
        "--run",
        dest="run_id",
        metavar="NAME",
        help="name of the run (default: one with the time); if the folder has a run of this name, it becomes "
        "NAME-2, NAME-3, ...",
    )
    stop = actions.add_parser("stop", help="end it; its files are complete then", allow_abbrev=False)
    status = actions.add_parser("status", help="show how it goes", allow_abbrev=False)
    status.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    for action, run in ((start, _start), (stop, _stop), (status, _status)):
        add_where(action)
        action.set_defaults(act=run)


def _run(arguments: argparse.Namespace) -> int:
    code: int = arguments.act(arguments)
    return code


def _start(arguments: argparse.Namespace) -> int:
    # The broker may run in another folder.
    given: dict[str, Any] = {"folder": os.path.abspath(arguments.folder)}
    if arguments.every is not None:
        given["every"] = CONFIG_SETTINGS["record_every"].parse(arguments.every, "flag --every")
    if arguments.run_id is not None:
        given["run"] = arguments.run_id
    recording = ask(arguments, "record-start", **given)
    taken = arguments.run_id not in (None, recording["run_id"])
    there = f" (there is a run {arguments.run_id} already)" if taken else ""
    print(f"recording to {recording['folder']}, run {recording['run_id']}{there}")
    return EXIT_OK


def _stop(arguments: argparse.Namespace) -> int:
    recording = ask(arguments, "record-stop")
    print(f"recorded {_sentence(recording)}")
    return EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    answer = ask(arguments, "record-status")
    recording, failed = answer["recording"], answer.get("failed")
    if arguments.format == "json":
        print(json.dumps({"failed": failed} if recording is None and failed else recording, indent=2))
    elif recording is None and failed:
        print(
            f"the broker does not record: the recording to {failed['folder']}, run {failed['run_id']}, "
            f"failed; of {counted(failed['events'], 'event')} {failed['events_lost']} are lost: "
            f"{failed['reason']}"
        )
    elif recording is None:
        print("the broker does not record; 'amqp10broker record start DIR' begins to")
    else:
        print(f"recording {_sentence(recording)}")
    return EXIT_OK if recording is not None else EXIT_FAILED


def _sentence(recording: Mapping[str, Any]) -> str:
    return (
        f"to {recording['folder']}, run {recording['run_id']}, "
        f"every {recording['every_ms']} ms: {counted(recording['events'], 'event')}, "
        f"{recording['events_written']} in complete files, {recording['events_dropped']} dropped; observing "
        f"takes {recording['processor_percent']:g} % of a processor, {recording['cost_percent']:g} % of what "
        "the broker uses"
    )


COMMANDS: Final = (
    Command(
        "record",
        _arguments,
        _run,
        "Record what the broker's links do, and why they wait, into Parquet files: 'amqp10broker analyse "
        "DIR' reads them. At intervals, observing takes 2 % of a processor at most; status and stop say what "
        "it took. With 'serve --record DIR' it begins with the broker. Exit code 1 if it cannot record, and "
        "of status if it does not, with the reason if a recording failed.",
    ),
)
