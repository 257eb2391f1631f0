"""Reads or repairs the files of a data folder, without a broker."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_format
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.storage.check import Checked, accept_folder, check_folder
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import inspect_data_folder, open_data_folder


def _arguments(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", help="data folder, as given to serve --data-dir")
    add_format(parser)


def _accept(arguments: argparse.Namespace) -> int:
    disk = Disk()
    path = os.path.abspath(arguments.folder)
    inspect_data_folder(disk, path, without_inventory=True).close()  # does not create a missing folder
    folder = open_data_folder(disk, path, f"process {os.getpid()}", without_inventory=True)
    try:
        given_up = list(accept_folder(disk, folder))
    finally:
        folder.close()
    if arguments.format == "json":
        print(json.dumps({"given_up": given_up}, indent=2))
    else:
        print("\n".join(f"accepted as lost: {each}" for each in given_up) or "nothing is missing")
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    from amqp10broker.runtime.journal.bootstrap import Contents

    disk = Disk()
    folder = inspect_data_folder(disk, os.path.abspath(arguments.folder))
    as_json = arguments.format == "json"
    files: list[Checked] = []
    try:
        for checked in check_folder(disk, folder, Contents()):
            files.append(checked)
            if not as_json:
                print(_line(checked), flush=True)
    finally:
        folder.close()
    faults = sum(checked.fault is not None for checked in files)
    if as_json:
        print(json.dumps({"files": [_entry(checked) for checked in files], "damaged": faults}, indent=2))
    else:
        print(_summary(files, faults))
    return EXIT_FAILED if faults else EXIT_OK


def _line(checked: Checked) -> str:
    text = f"{checked.path}: {checked.records} records, {checked.bytes} bytes"
    if checked.fault is not None:
        place = "" if checked.fault.offset is None else f" at offset {checked.fault.offset}"
        return f"{text}; BAD{place}: {checked.fault.problem}; {checked.fault.remedy}"
    if checked.torn is not None:
        return (
            f"{text}; torn end of {checked.torn.bytes} bytes at offset {checked.torn.offset}: it was never "
            "confirmed, and the next start removes it"
        )
    return f"{text}; whole"


def _summary(files: list[Checked], faults: int) -> str:
    records, size = sum(each.records for each in files), sum(each.bytes for each in files)
    delivery_outcome = f"{faults} bad; the broker does not start with this folder" if faults else "no damage"
    return f"{len(files)} files, {records} records, {size} bytes: {delivery_outcome}"


def _entry(checked: Checked) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": checked.path, "records": checked.records, "bytes": checked.bytes}
    if checked.torn is not None:
        entry["torn"] = {"offset": checked.torn.offset, "bytes": checked.torn.bytes}
    if checked.fault is not None:
        fault = checked.fault
        entry["fault"] = {"offset": fault.offset, "problem": fault.problem, "remedy": fault.remedy}
    return entry


COMMANDS: Final = (
    Command(
        "storage check",
        _arguments,
        _check,
        "Read all files of a data folder, and print for each the number of records and whether it is "
        "complete. The exit code is 1 if a file is damaged or missing, so that the broker would not start. "
        "The command is refused while a broker uses the folder.",
    ),
    Command(
        "storage accept",
        _arguments,
        _accept,
        "Accept that missing files of a data folder are lost permanently, so that the broker starts with "
        "the rest. The command is refused while a broker uses the folder.",
    ),
)
