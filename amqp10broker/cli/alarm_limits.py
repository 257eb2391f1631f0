"""Commands that change where the alarms of memory and disk begin."""

from __future__ import annotations

import argparse
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.config.records import CONFIG_SETTINGS


def _limit(
    words: str, name: str, description: str, meaning: str, help: str, known: tuple[str, ...]
) -> Command:
    def more(parser: Parser) -> None:
        value: Any = parser.add_argument("value", nargs="+", metavar="VALUE", help=help)
        value.completions = known

    def prepare(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
        value = CONFIG_SETTINGS[name].parse(" ".join(arguments.value), words)
        given |= {"name": name, "value": value}

    def said(arguments: argparse.Namespace, result: Any) -> str:
        limit, written = result["limit_bytes"], " ".join(arguments.value)
        if limit is None:
            return (
                f"{name} is now {written}, but cannot be used: the system does not say how much memory there "
                "is; give an amount"
            )
        return f"{name} is now {written}: {meaning.format(f'{limit} bytes')}"

    told = f"{description} Until its next start; for good, set {name} in its configuration."
    call = CommandCall(
        "set-limit", said, without=("name", "value"), more=more, prepare=prepare, description=told
    )
    return call.command(words)


COMMANDS: Final = (
    _limit(
        "alarm memory-limit",
        "vm_memory_high_watermark",
        "Change how much memory a running broker may use before publishers are held back.",
        "publishers are held back above {} of memory",
        "a share of the memory that the broker may use, 0 to 1 (0 holds publishers back at once), or "
        "'absolute' and an amount: absolute 512MB, absolute 1GiB",
        ("absolute", "relative"),
    ),
    _limit(
        "alarm disk-limit",
        "disk_free_limit",
        "Change below how much free disk a running broker holds publishers back.",
        "publishers are held back below {} of free disk",
        "an amount (1GB, 500MiB; without a unit bytes), or 'mem_relative' and a multiple of the memory that "
        "the broker may use: mem_relative 1.5",
        ("absolute", "mem_relative"),
    ),
)
