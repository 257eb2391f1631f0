"""Commands of operations, and those that need more than the registry has.

Those of a cluster have the names, columns and exit codes of RabbitMQ's tools.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, Final

from amqp10broker.cli import status, tables
from amqp10broker.cli.calls import CommandCall, add_formatter, registered
from amqp10broker.cli.commands import STANDARD, Command, Parser, add_format, add_vhost, ask, read_file
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, Failed
from amqp10broker.cli.status import without_leader
from amqp10broker.cli.tables import as_json
from amqp10broker.config.settings import CONFIG_SETTINGS
from amqp10broker.errors import ConfigError
from amqp10broker.operations.accounts import QUEUE_TYPES
from amqp10broker.operations.operation import counted


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
                f"{name} is now {written}, without effect: the operating system does not report the size of "
                "the memory; give an amount"
            )
        return f"{name} is now {written}: {meaning.format(f'{limit} bytes')}"

    told = (
        f"{description} The change lasts until the broker restarts; to make it permanent, set {name} in the "
        "configuration."
    )
    call = CommandCall(
        "set-limit", said, without=("name", "value"), more=more, prepare=prepare, description=told
    )
    return call.command(words)


_LIMITS: Final = (
    _limit(
        "alarm memory-limit",
        "vm_memory_high_watermark",
        "Change the memory use above which a running broker blocks publishers.",
        "publishers are blocked above {} of memory",
        "a share of the memory that the broker may use, 0 to 1 (0 blocks publishers at once), or an "
        "amount: absolute 512MB, absolute 1GiB",
        ("absolute", "relative"),
    ),
    _limit(
        "alarm disk-limit",
        "disk_free_limit",
        "Change the free disk space below which a running broker blocks publishers.",
        "publishers are blocked below {} of free disk space",
        "an amount (1GB, 500MiB; bytes without a unit), or a multiple of the memory that the broker may "
        "use: mem_relative 1.5",
        ("absolute", "mem_relative"),
    ),
)


QUEUE_TYPE: Final = "x-queue-type"


def _add_queue_type(parser: Parser) -> None:
    parser.add_argument("--type", choices=QUEUE_TYPES, help="default: that of the virtual host, classic")


def _with_type(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    if arguments.type is not None:
        if QUEUE_TYPE in given["arguments"]:
            raise ConfigError("option --type", f"is given beside {QUEUE_TYPE}", "give one of them")
        given["arguments"][QUEUE_TYPE] = arguments.type


def _declared(kind: str, arguments: argparse.Namespace, result: Any) -> str:
    what = "declared" if result["created"] else "exists already, with these properties"
    return f"{kind} '{arguments.name}' {what}"


def _queue_is_there(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    # For clients, deleting a missing object is not an error. For a person at a terminal, it is.
    ask(arguments, "get-queue", name=arguments.name)


def _exchange_is_there(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    if all(each["name"] != arguments.name for each in ask(arguments, "list-exchanges")):
        raise Failed(f"no exchange '{arguments.name}': see 'amqp10broker exchange list'")


_DECLARING: Final = (
    CommandCall(
        "declare-queue",
        partial(_declared, "queue"),
        without=("exclusive",),
        more=_add_queue_type,
        prepare=_with_type,
    ),
    CommandCall("declare-exchange", partial(_declared, "exchange")),
    CommandCall(
        "delete-queue",
        lambda a, gone: f"queue '{a.name}' deleted with {counted(gone['message_count'], 'ready message')}",
        prepare=_queue_is_there,
    ),
    CommandCall(
        "delete-exchange", lambda a, gone: f"exchange '{a.name}' deleted", prepare=_exchange_is_there
    ),
    CommandCall(
        "purge-queue",
        lambda a, gone: f"{counted(gone['message_count'], 'message')} purged from queue '{a.name}'",
    ),
)


def _add_target(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to write; - for standard output")


def _exported(arguments: argparse.Namespace, document: Any) -> str | None:
    text = as_json(document)
    if arguments.file == STANDARD:
        sys.stdout.write(text)
        return None
    write_private(arguments.file, text)
    told = f"definitions written to {arguments.file}; it contains password hashes"
    return f"{told}\nwarning: {document['explanation']}" if "explanation" in document else told


def write_private(path: str, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    temporary = ""
    try:
        # In the same directory, so that it can replace the old one atomically; mode 0600.
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".definitions-")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            os.unlink(temporary)
        raise Failed(
            f"cannot write {path}: {error.strerror}; give another file, or - for standard output"
        ) from error


def _add_source(parser: Parser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="file of definitions that RabbitMQ or this broker exported; - for standard input",
    )
    add_vhost(parser)


def _with_document(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    source = "standard input" if arguments.file == STANDARD else f"file {arguments.file}"
    try:
        given["document"] = json.loads(read_file(arguments.file))
    except ValueError as error:
        raise ConfigError(
            source,
            f"is not JSON: {error}",
            "give a file of 'amqp10broker definitions export' or 'rabbitmqctl export_definitions'",
        ) from error


def _imported(arguments: argparse.Namespace, report: Any) -> str:
    loaded = ", ".join(f"{name} {count}" for name, count in report["loaded"].items() if count)
    lines = [f"imported: {loaded or 'nothing'}", *(f"not imported: {reason}" for reason in report["skipped"])]
    if report["unknown"]:
        lines.append(f"stored without effect: {', '.join(report['unknown'])}")
    return "\n".join(lines)


_DEFINITIONS: Final = (
    CommandCall("export-definitions", _exported, more=_add_target),
    CommandCall(
        "import-definitions",
        _imported,
        without=("document",),
        more=_add_source,
        prepare=_with_document,
        description="Declare the contents of a definitions file. Exchanges, queues, bindings and policies "
        "that are refused are listed and not imported; if anything else is refused, nothing is imported. "
        "Use --vhost for a file that does not name a virtual host.",
    ),
)


COLUMNS: Final = ("state", "check", "evidence", "to_do")
OK: Final = "ok"
WIDTH: Final = 80


def _checks_shown(arguments: argparse.Namespace, found: Any) -> None:
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    elif arguments.format == "table":
        print("\n".join(_checks_page(found["checks"])))
    else:
        sys.stdout.write(tables.render(COLUMNS, found["checks"], arguments.format))


def _checks_page(checks: Sequence[Mapping[str, str]]) -> Iterator[str]:
    fill = partial(
        wrap, width=WIDTH, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
    )
    for row in checks:
        if row["state"] != OK:
            yield from fill(tables.cell(f"{row['state']:9} {row['check']}: {row['evidence']}"))
            yield from fill(tables.cell(f"{'':9} do: {row['to_do']}"))
    yield from fill(f"{OK:9} {', '.join(row['check'] for row in checks if row['state'] == OK) or 'nothing'}")


_DOCTOR: Final = (
    CommandCall(
        "doctor",
        _checks_shown,
        more=add_formatter,
        code=lambda found: (
            EXIT_UNAVAILABLE if any(row["state"] == "bad" for row in found["checks"]) else EXIT_OK
        ),
        description="Check whether this node is fit for production. Prints findings, the worst first, each "
        "with its state (bad, warn, unknown), the evidence and the remedy, and then the checks that are ok; "
        "checks that do not apply are left out. The formats csv, plain and json have a row for each check. "
        "The exit code is 0 if nothing is bad, otherwise 69. docs/operating.md lists the checks. In a "
        "cluster, run it on each node.",
    ),
)


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


def _recording_shown(arguments: argparse.Namespace, answer: Any) -> str:
    recording, failed = answer["recording"], answer.get("failed")
    if arguments.format == "json":
        return json.dumps({"failed": failed} if recording is None and failed else recording, indent=2)
    if recording is not None:
        return f"recording {_sentence(recording)}"
    if failed:
        return (
            f"the broker is not recording: the recording to {failed['folder']}, run {failed['run_id']}, "
            f"failed; of {counted(failed['events'], 'event')} {failed['events_lost']} are lost: "
            f"{failed['reason']}"
        )
    return "the broker is not recording; start with 'amqp10broker record start DIR'"


def _sentence(recording: Mapping[str, Any]) -> str:
    return (
        f"to {recording['folder']}, run {recording['run_id']}, every {recording['every_ms']} ms: "
        f"{counted(recording['events'], 'event')}, {recording['events_written']} in complete files, "
        f"{recording['events_dropped']} dropped; observing takes {recording['processor_percent']:g} % of a "
        f"processor, {recording['cost_percent']:g} % of what the broker uses"
    )


_RECORDING: Final = (
    CommandCall(
        "record-start",
        _started,
        without=("every",),
        more=_add_every,
        prepare=_as_seen_from_here,
        description="Record the activity of the broker's links, and why they wait, to Parquet files for "
        "'amqp10broker record analyse DIR'. Sampling uses at most 2 % of a processor; 'record stop' "
        "and 'record status' print how much it used. 'serve --record DIR' records from the start of "
        "the broker.",
    ),
    CommandCall("record-stop", lambda a, recording: f"recorded {_sentence(recording)}"),
    CommandCall(
        "record-status",
        _recording_shown,
        more=add_format,
        code=lambda answer: EXIT_FAILED if answer["recording"] is None else EXIT_OK,
        description="Print whether the broker is recording, the cost of the recording, or why it failed. "
        "The exit code is 1 if the broker is not recording.",
    ),
)


def _said(what: str, said: Any) -> str:
    return f"{what} {said}" if isinstance(said, str) else f"machine versions {said[0]} to {said[1]}"


def _cluster_status(arguments: argparse.Namespace, status: Any) -> str:
    # Names and order are RabbitMQ's.
    versions = [
        f"{name}: {', '.join(_said(what, said) for what, said in each.items())}"
        for name, each in status["versions"].items()
    ]
    alarms = [f"{each['alarm']} alarm on node {each['node']}" for each in status["alarms"]]
    listeners = [
        f"Node: {each['node']}, interface: {each['interface']}, port: {each['port']}, "
        f"protocol: {each['protocol']}, purpose: {each['purpose']}"
        for found in status["listeners"].values()
        for each in found
    ]
    lacking = status.get("queues_without_leader")
    leaderless = [("Queues without a leader", [without_leader(lacking)])] if lacking else []
    states = [f"Node: {name}, status: {state}" for name, state in status["maintenance_status"].items()]
    parts: tuple[tuple[str, list[str]], ...] = (
        ("Basics", [f"Cluster name: {status['cluster_name']}"]),
        ("Cluster Tags", status["cluster_tags"]),
        ("Disk Nodes", status["disk_nodes"]),
        ("Running Nodes", status["running_nodes"]),
        ("Versions", versions),
        ("Alarms", alarms),
        ("Network Partitions", []),
        ("Listeners", listeners),
        *leaderless,
        ("Maintenance status", states),
        ("Feature flags", status["feature_flags"]),
    )
    return "\n\n".join("\n".join([title, "", *(lines or ["(none)"])]) for title, lines in parts)


def _add_ends(parser: Parser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help="queue or exchange that gets the messages")
    parser.add_argument(
        "--to-exchange", action="store_true", help="DESTINATION is the name of an exchange, not of a queue"
    )
    parser.add_argument("--key", default="", help="routing key or pattern (default: empty)")


_ENDS: Final = ("destination_queue", "destination_exchange", "binding_key")


def _with_ends(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    kind = "exchange" if arguments.to_exchange else "queue"
    given |= {f"destination_{kind}": arguments.destination, "binding_key": arguments.key}


def _is_bound(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    _with_ends(arguments, given)
    ends = {name: value for name, value in given.items() if name != "arguments"}
    if all(each["arguments"] != given["arguments"] for each in ask(arguments, "get-bindings", **ends)):
        raise Failed(f"{_bound(arguments)} has no such binding, see 'amqp10broker binding list'")


def _bound(arguments: argparse.Namespace) -> str:
    kind = "exchange" if arguments.to_exchange else "queue"
    return f"{kind} '{arguments.destination}' to exchange '{arguments.source}' with key '{arguments.key}'"


def _policy_set(what: str, arguments: argparse.Namespace, found: Any) -> str:
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if found["ineffective"]:
        print(
            f"warning: {', '.join(found['ineffective'])}: these settings have no effect on some of the "
            "queues, see 'amqp10broker queue list name policy ineffective_policy_keys'",
            file=sys.stderr,
        )
    contents = f"{counted(found['queues'], 'queue')} and {counted(found['exchanges'], 'exchange')}"
    return f"{what} '{arguments.name}' set; it applies to {contents}"


def _waits(arguments: argparse.Namespace, found: Any) -> str:
    if arguments.format == "json":
        return json.dumps(found, indent=2)
    return "\n".join(status.page(found, status.width_of(sys.stdout)))


COMMANDS: Final = (
    *_LIMITS,
    *registered(
        CommandCall(
            "bind", lambda a, bound: f"{_bound(a)} bound", without=_ENDS, more=_add_ends, prepare=_with_ends
        ),
        CommandCall(
            "unbind", lambda a, gone: f"{_bound(a)} unbound", without=_ENDS, more=_add_ends, prepare=_is_bound
        ),
        CommandCall("set-policy", partial(_policy_set, "policy")),
        CommandCall("set-operator-policy", partial(_policy_set, "operator policy")),
        *_DECLARING,
        *_DEFINITIONS,
        *_RECORDING,
        CommandCall(
            "waiting",
            _waits,
            more=partial(add_format, plain="table"),
            description="Show every link, channel and consumer that waits, the longest first: the reason, "
            "the evidence, for how long it has waited, and the remedy. docs/waiting.md explains the codes.",
        ),
        *_DOCTOR,
        CommandCall("cluster-status", _cluster_status),
    ),
)
