"""Commands on resource alarms: their limits while the broker runs, and alarms raised by hand."""

from __future__ import annotations

import argparse
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.config.records import CONFIG_SETTINGS

MEMORY: Final = "vm_memory_high_watermark"
DISK: Final = "disk_free_limit"


# --- limits ---------------------------------------------------------------------------------------


def _watermark_arguments(parser: Parser) -> None:
    value: Any = parser.add_argument(
        "value",
        nargs="+",
        metavar="VALUE",
        help="a share of the memory that the broker may use, 0 to 1 (0 holds publishers back at once), or "
        "'absolute' and an amount: absolute 512MB, absolute 1GiB",
    )
    value.completions = ("absolute", "relative")
    add_where(parser)


def _set_watermark(arguments: argparse.Namespace) -> int:
    return _set_limit(arguments, MEMORY, "publishers are held back above {} of memory")


def _disk_arguments(parser: Parser) -> None:
    value: Any = parser.add_argument(
        "value",
        nargs="+",
        metavar="VALUE",
        help="an amount (1GB, 500MiB; without a unit bytes), or 'mem_relative' and a multiple of the memory "
        "that the broker may use: mem_relative 1.5",
    )
    value.completions = ("absolute", "mem_relative")
    add_where(parser)


def _set_disk_limit(arguments: argparse.Namespace) -> int:
    return _set_limit(arguments, DISK, "publishers are held back below {} of free disk")


def _set_limit(arguments: argparse.Namespace, name: str, meaning: str) -> int:
    written = CONFIG_SETTINGS[name].parse(" ".join(arguments.value), arguments.command)
    result = ask(arguments, "set-limit", name=name, value=written)
    limit = result.get("limit_bytes")
    if limit is None:
        print(
            f"{name} is now {written}, but cannot be used: the system does not say how much memory there is; "
            "give an amount"
        )
    else:
        print(f"{name} is now {written}: {meaning.format(f'{limit} bytes')}")
    return EXIT_OK


# --- by hand --------------------------------------------------------------------------------------


def _alarm_arguments(parser: Parser) -> None:
    parser.add_argument("name", choices=("memory", "disk"))
    parser.add_argument("state", choices=("on", "off"))
    add_where(parser)


def _alarm(arguments: argparse.Namespace) -> int:
    name = arguments.name
    on = arguments.state == "on"
    result = ask(arguments, "alarm", name=name, on=on)
    if not on and name in result.get("alarms", ()):
        limit = MEMORY if name == "memory" else DISK
        print(
            f"the {name} alarm stays on, for another reason: 'amqp10broker status' says which; "
            f"'amqp10broker set-{limit.replace('_', '-')}' sets another limit"
        )
    else:
        print(f"the {name} alarm is {arguments.state}")
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "alarm",
        _alarm_arguments,
        _alarm,
        "Raise a resource alarm by hand, or take that back. While one is on, publishers are held back. An "
        "alarm that was measured ends when there is room again, or under another limit.",
    ),
    Command(
        "set-vm-memory-high-watermark",
        _watermark_arguments,
        _set_watermark,
        "Change how much memory a running broker may use before publishers are held back. Until its next "
        "start; for good, set vm_memory_high_watermark in its configuration.",
    ),
    Command(
        "set-disk-free-limit",
        _disk_arguments,
        _set_disk_limit,
        "Change below how much free disk a running broker holds publishers back. Until its next start; for "
        "good, set disk_free_limit in its configuration.",
    ),
)
