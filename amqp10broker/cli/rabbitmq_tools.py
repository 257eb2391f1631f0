"""RabbitMQ's tools, as ``amqp10broker rabbitmqctl list_queues``, or under their own names.

Each command is a row of `COMMANDS`: most rewrite the words to a command of this broker, the rest call an
operation. The image (docs/operating/Containerfile) has the tools by RabbitMQ's names, and its configuration:
``rabbitmq-server`` runs the broker by that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import amqp10broker
from amqp10broker.cli import commands
from amqp10broker.cli.exits import EXIT_OK, EXIT_UNAVAILABLE, Failed
from amqp10broker.cli.listing import LISTINGS
from amqp10broker.config.settings import SETTINGS
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError, closest
from amqp10broker.operations.registry import OPERATIONS

BUILT_IN: Final = (
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_web_dispatch",
)
START_S: Final = 300.0
POLL_S: Final = 0.2
BAD_LOGIN: Final = 65


@dataclass(frozen=True, slots=True)
class Written:
    """The words of one call. `options`: by name; True for an option without a value. `words`: all others."""

    command: str
    words: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def quiet(self) -> bool:
        return "quiet" in self.options or "silent" in self.options

    @property
    def in_vhost(self) -> tuple[str, ...]:
        return ("-p", self.options["vhost"]) if "vhost" in self.options else ()

    def ask(self, operation: str, /, **arguments: Any) -> Any:
        place = argparse.Namespace(port=None, admin_socket=None, vhost=self.options.get("vhost"))
        return commands.ask(place, operation, **arguments)

    def only(self, *names: str, least: int | None = None) -> list[str]:
        """Return the words, one for each name, or at least so many."""
        if not (len(names) if least is None else least) <= len(self.words) <= len(names):
            form = " ".join(name.upper() for name in names) or "no argument"
            raise ConfigError(
                self.command, f"has {len(self.words)} arguments", f"write {self.command} {form}"
            )
        return list(self.words)


Run = Callable[[Written], int]
_WITH_VALUE: Final = {
    **dict.fromkeys(("-n", "--node"), "node"),
    **dict.fromkeys(("-p", "--vhost"), "vhost"),
    **dict.fromkeys(("-t", "--timeout"), "timeout"),
    "--formatter": "formatter",
}
_WITHOUT: Final = {
    **dict.fromkeys(("-q", "--quiet"), "quiet"),
    **dict.fromkeys(("-s", "--silent"), "silent"),
    "--no-table-headers": "silent",
    **dict.fromkeys(("-l", "--longnames"), "longnames"),
}
_ASKED: Final = {"-h": "help", "--help": "help", "--version": "version"}
_LISTINGS: Final = {each.noun.replace("-", "_"): each for each in LISTINGS}
_FORMATS: Final = {"table": "plain", "pretty_table": "table", "json": "json", "csv": "csv", "erlang": "plain"}


def run_tool(tool: str, given: Sequence[str]) -> int:
    """Run one call of a tool, and return its exit code. Raises `ConfigError` if the command is unknown or not
    available here, or its words are wrong, and `BrokerError` if the broker refuses it or cannot be reached.
    """
    if "RABBITMQ_NODE_PORT" in os.environ:
        os.environ.setdefault(SETTINGS["port"].variable, os.environ["RABBITMQ_NODE_PORT"])
    if tool == "rabbitmq-server":
        return run_server(given)
    if tool == "rabbitmqadmin":
        return _admin(given)
    call = _read(tool, given)
    if call.command in ("help", "", "version"):
        print(amqp10broker.__version__ if call.command == "version" else "\n".join(sorted(_known())))
        return EXIT_OK
    run = COMMANDS.get(call.command)
    if run is None and call.command.startswith("list_"):
        run = _list
    if run is None:
        raise ConfigError(f"{tool} {call.command}", *_missing(tool, call.command))
    return run(call)


def _known() -> set[str]:
    return {*COMMANDS, *(f"list_{noun}" for noun in _LISTINGS)}


def _missing(tool: str, command: str) -> tuple[str, str]:
    if command in NOT_HERE:
        return "is not here", NOT_HERE[command]
    meant = closest(command, list(_known()))
    return "is not a command", f"did you mean {meant}?" if meant else f"'{tool} help' lists what there is"


def _read(tool: str, given: Sequence[str]) -> Written:
    words: list[str] = []
    options: dict[str, Any] = {}
    waiting = list(given)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if name in _WITH_VALUE:
            if not equals and not waiting:
                raise ConfigError(f"{tool} {name}", "has no value", "give one")
            options[_WITH_VALUE[name]] = value if equals else waiting.pop(0)
        elif word in _WITHOUT:
            options[_WITHOUT[word]] = True
        elif word in _ASKED:
            return Written(_ASKED[word], (), options)
        else:
            words.append(word)
    command = words.pop(0).replace("-", "_") if words else ""
    return Written(command, tuple(words), options)


def _main(*words: str) -> int:
    from amqp10broker.cli.main import main  # it imports this file, too

    return main(words)


def _ours(words: str, call: Written) -> int:
    # The text is left out if the call is quiet.
    with contextlib.redirect_stdout(io.StringIO() if call.quiet else sys.stdout):
        return _main(*words.split(), *call.in_vhost, *call.words)


def _command(call: Written) -> str:
    command = OPERATIONS[call.command.replace("_", "-")].command
    assert command is not None
    return command.words


def _result(call: Written) -> int:
    # The text of a command of a cluster is its result.
    form = call.options.get("formatter")
    return _main(*_command(call).split(), *call.words, *call.in_vhost, *(("--format", form) if form else ()))


def _list(call: Written) -> int:
    form = call.options.get("formatter", "table")
    if form not in _FORMATS:
        raise ConfigError(f"--formatter {form}", "is not one", f"write one of {', '.join(_FORMATS)}")
    what = call.command.removeprefix("list_")
    listing = _LISTINGS.get(what)
    if listing is None:
        raise ConfigError(call.command, *_missing("rabbitmqctl", call.command))
    vhost = call.options.get("vhost")
    if not call.quiet and form not in ("json", "csv"):
        print(f"Listing {what.replace('_', ' ')}{'' if vhost is None else f' for vhost {vhost}'} ...")
    silent = ("--no-header",) if "silent" in call.options else ()
    options = (*call.in_vhost, "--format", _FORMATS[form], *silent)
    return _main(*listing.words.split(), *call.words, *options)


def _say(call: Written, text: str) -> int:
    if not call.quiet:
        print(text)
    return EXIT_OK


def _fail(text: str) -> int:
    print(f"Error: {text}", file=sys.stderr)
    return EXIT_UNAVAILABLE


# --- users, queues --------------------------------------------------------------------------------


def _password(operation: str, text: str, call: Written) -> int:
    user, *rest = call.only("user", "password", least=1)
    call.ask(operation, user=user, password=rest[0] if rest else sys.stdin.readline().rstrip("\n"))
    return _say(call, text.format(user))


def _clear_password(call: Written) -> int:
    (user,) = call.only("user")
    call.ask("change-password", user=user, password=None)
    return _say(call, f'Clearing password for user "{user}" ...')


def _set_tags(call: Written) -> int:
    if not call.words:
        raise ConfigError(call.command, "names no user", "write set_user_tags USER TAG ...")
    user, *tags = call.words
    call.ask("set-tags", user=user, tags=tags)
    return _say(call, f'Setting tags for user "{user}" to [{", ".join(tags)}] ...')


def _authenticate(call: Written) -> int:
    from amqp10broker.client.blocking import connect
    from amqp10broker.client.errors import ConnectionEndedError, LoginError

    user, password = call.only("user", "password")
    listener = next(each for each in _listeners(call) if each["protocol"] == "amqp")
    try:
        with (
            contextlib.suppress(ConnectionEndedError),  # a user without permissions has logged in, too
            connect(_host(listener), listener["port"], user=user, password=password),
        ):
            pass
        return _say(call, f'Authenticating user "{user}" ...\nSuccess')
    except LoginError as error:
        print(f"Error: failed to authenticate user '{user}': {error}", file=sys.stderr)
        return BAD_LOGIN


def _delete_queue(call: Written) -> int:
    flags = {"-e": "if_empty", "--if-empty": "if_empty", "-u": "if_unused", "--if-unused": "if_unused"}
    names = [word for word in call.words if word not in flags]
    if len(names) != 1:
        raise ConfigError(call.command, f"has {len(names)} names", "write delete_queue QUEUE")
    conditions = {flags[word]: True for word in call.words if word in flags}
    call.ask("get-queue", name=names[0])
    gone = call.ask("delete-queue", name=names[0], **conditions)
    return _say(call, f"Queue was successfully deleted with {gone['message_count']} ready messages")


def _close_all(call: Written) -> int:
    (reason,) = call.only("reason")
    for each in call.ask("connections"):
        call.ask("close-connection", id=each["id"], reason=reason)
    return _say(call, "Closing all connections ...")


# --- checks ---------------------------------------------------------------------------------------


def _listeners(call: Written) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call.ask("list-listeners")
    return found


def _host(listener: Mapping[str, Any]) -> str:
    host: str = listener["interface"]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _ping(call: Written) -> int:
    _listeners(call)
    return _say(call, "Ping succeeded")


def _await_startup(call: Written) -> int:
    until = time.monotonic() + float(call.options.get("timeout", START_S))
    while True:
        try:
            _listeners(call)
        except BrokerError:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
        else:
            return EXIT_OK


def _check_alarms(call: Written) -> int:
    alarms = call.ask("list-alarms")
    if alarms:
        return _fail(", ".join(each["alarm"] for each in alarms))
    return _say(call, "Node reported no alarms")


def _check_connectivity(call: Written) -> int:
    for each in _listeners(call):
        try:
            socket.create_connection((_host(each), each["port"]), timeout=10.0).close()
        except OSError as error:
            return _fail(f"cannot connect to port {each['port']}: {error}")
    return _say(call, "Successfully connected to every port")


def _check_listener(field: str, call: Written) -> int:
    (wanted,) = call.only(field)
    if any(str(each[field]).startswith(wanted) for each in _listeners(call)):
        return _say(call, f"A listener of {field} {wanted} is running")
    return _fail(f"no listener of {field} {wanted} is running")


def _show_listeners(call: Written) -> int:
    found = _listeners(call)
    if call.options.get("formatter") == "json":
        print(json.dumps({"listeners": found}))
        return EXIT_OK
    for each in found:
        print(", ".join(f"{name}: {each[name]}" for name in ("interface", "port", "protocol")))
    return EXIT_OK


def _enable_plugins(call: Written) -> int:
    words = [word for word in call.words if not word.startswith("-")]
    missing = [word for word in words if word not in BUILT_IN]
    if missing:
        raise ConfigError(
            f"plugin {missing[0]}", "is not in this broker", f"it has the services of {', '.join(BUILT_IN)}"
        )
    return _say(call, "The following plugins are part of the broker: " + ", ".join(words))


def _list_plugins(call: Written) -> int:
    if call.command == "list":
        print(
            "\n".join(BUILT_IN if call.quiet or "-m" in call.words else (f"[E*] {name}" for name in BUILT_IN))
        )
    return EXIT_OK


_SAME: Final = """
    set_permissions clear_permissions set_topic_permissions clear_topic_permissions delete_user
    set_policy clear_policy set_operator_policy clear_operator_policy
    add_vhost delete_vhost set_vhost_limits set_user_limits
    set_cluster_name close_connection
    export_definitions import_definitions forget_cluster_node join_cluster reset force_reset drain revive
"""
_RESULTS: Final = """
    cluster_status metadata_store_status quorum_status stream_status
    add_member delete_member grow grow_to_count shrink rebalance transfer_leadership
    await_online_nodes await_online_quorum_plus_one
    check_if_node_is_quorum_critical has_reached_target_cluster_size
    check_for_quorum_queues_without_an_elected_leader
    check_if_new_quorum_queue_replicas_have_finished_initial_sync
    force_shrink_member_to_current_member force_all_queues_shrink_member_to_current_member
"""
COMMANDS: Final[Mapping[str, Run]] = {
    **dict.fromkeys(_SAME.split(), lambda call: _ours(_command(call), call)),
    **dict.fromkeys(_RESULTS.split(), _result),
    "add_user": partial(
        _password, "add-user", 'Adding user "{}" ...\nDone. Grant the user permissions with set_permissions.'
    ),
    "change_password": partial(_password, "change-password", 'Changing password for user "{}" ...'),
    "clear_password": _clear_password,
    "set_user_tags": _set_tags,
    "authenticate_user": _authenticate,
    "purge_queue": partial(_ours, "queue purge"),
    "set_vm_memory_high_watermark": partial(_ours, "alarm memory-limit"),
    "set_disk_free_limit": partial(_ours, "alarm disk-limit"),
    "status": partial(_ours, "status"),
    "delete_queue": _delete_queue,
    "close_all_connections": _close_all,
    "ping": _ping,
    **dict.fromkeys(("await_startup", "wait"), _await_startup),
    **dict.fromkeys(("check_running", "is_running", "check_virtual_hosts", "node_health_check"), _ping),
    **dict.fromkeys(("check_alarms", "check_local_alarms", "alarms"), _check_alarms),
    "check_port_connectivity": _check_connectivity,
    "check_port_listener": partial(_check_listener, "port"),
    "check_protocol_listener": partial(_check_listener, "protocol"),
    "listeners": _show_listeners,
    "server_version": lambda call: _say(call, amqp10broker.__version__),
    "enable": _enable_plugins,
    "list": _list_plugins,
    "is_enabled": _enable_plugins,
    **dict.fromkeys(
        ("enable_feature_flag", "enable_all_feature_flags"),
        lambda call: _say(call, "Every feature flag is enabled"),
    ),
}
_NO_STREAM: Final = "a stream is at one node"
_NO_STOP: Final = "stop the process with SIGTERM, and start it again with 'amqp10broker serve'"
_NO_ERLANG: Final = "the broker is not in Erlang"
NOT_HERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("stop", "stop_app", "start_app", "shutdown"), _NO_STOP),
    **dict.fromkeys(("eval", "eval_file", "exec", "remote_shell", "encode", "decode"), _NO_ERLANG),
    **dict.fromkeys(("environment", "report"), "'amqp10broker doctor' and 'status' report"),
    **dict.fromkeys(("add_replica", "delete_replica", "restart_stream"), _NO_STREAM),
    "disable": "--no-http and --no-prometheus turn services off",
}
"""Commands of RabbitMQ that are not available: the reason, or the alternative."""


# --- rabbitmqadmin --------------------------------------------------------------------------------

_SINGULARS: Final = ("queue", "exchange", "binding", "vhost", "user", "permission")
_NOUNS: Final = {"policies": "policy", **{f"{noun}s": noun for noun in _SINGULARS}}
_FLAGS: Final = ("durable", "auto_delete", "internal", "exclusive", "if_empty", "if_unused", "tracing")


_LOGIN: Final = ("username", "password", "host", "port", "format")
_SHORT: Final = dict(zip("upHPf", _LOGIN, strict=True)) | {"V": "vhost", "q": "quiet"}


def _admin(given: Sequence[str]) -> int:
    """Run `rabbitmqadmin`: ``declare queue name=q``, or of its second version ``queues declare --name q``."""
    words, fields = _admin_words(given)
    if len(words) < 2 and words != ["publish"] and words != ["get"]:
        raise ConfigError(
            "rabbitmqadmin", "names no command", "write as in: rabbitmqadmin declare queue name=q"
        )
    if words[0] in _NOUNS or words[0] in _NOUNS.values():
        words[:2] = words[1], words[0]
    verb, noun = words[0], _NOUNS.get(words[1], words[1]) if len(words) > 1 else ""
    options = {"vhost": fields.pop("vhost", None), "login": fields.pop("login", {})}
    call = Written(f"rabbitmqadmin {verb} {noun}".strip(), tuple(words[2:]), options)
    if verb == "list":
        return _list(Written(f"list_{words[1]}", call.words, {"silent": True} if "quiet" in fields else {}))
    action = _ADMIN.get((verb, noun))
    if action is None:
        known = ", ".join(f"{a} {b}".strip() for a, b in _ADMIN)
        raise ConfigError(call.command, "is not available here", f"there are: {known}, list NOUNS")
    try:
        action(call, fields)
    except KeyError as missing:
        raise ConfigError(call.command, f"lacks {missing.args[0]}", f"add {missing.args[0]}=VALUE") from None
    print(f"{noun or 'message'} {'declared' if verb == 'declare' else 'done'}")
    return EXIT_OK


def _admin_words(given: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    words: list[str] = []
    fields: dict[str, Any] = {}
    waiting = list(given)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") and not equals:
            words.append(word)
            continue
        name = (_SHORT.get(name, name) if word.startswith("-") else name).replace("-", "_")
        login = word.startswith("-") and name in _LOGIN and not words
        if not equals and waiting and not waiting[0].startswith("-") and name != "quiet":
            value = waiting.pop(0)
        if login:  # for publish and get; the broker's own socket, which all others use, needs none
            fields.setdefault("login", {})[name] = value
        else:
            fields[name] = value == "true" if name in _FLAGS else value
    return words, fields


def _table(fields: Mapping[str, Any], name: str = "arguments") -> dict[str, Any]:
    try:
        table = json.loads(fields.get(name) or "{}")
    except ValueError as error:
        raise ConfigError(name, f"is not JSON: {error}", 'write as in: {"x-max-length": 10}') from None
    if not isinstance(table, dict):
        raise ConfigError(name, "is not an object of JSON", 'write as in: {"x-max-length": 10}')
    return table


def _declare_queue(call: Written, fields: Mapping[str, Any]) -> None:
    kind = fields.get("queue_type") or fields.get("type")
    table = {**_table(fields), **({} if kind is None else {"x-queue-type": kind})}
    properties = {name: fields[name] for name in ("durable", "auto_delete") if name in fields}
    call.ask("declare-queue", name=fields["name"], arguments=table, **properties)


def _declare_exchange(call: Written, fields: Mapping[str, Any]) -> None:
    properties = {
        name: fields[name] for name in ("type", "durable", "auto_delete", "internal") if name in fields
    }
    call.ask("declare-exchange", name=fields["name"], arguments=_table(fields), **properties)


def _binding(operation: str, call: Written, fields: Mapping[str, Any]) -> None:
    ends = {f"destination_{fields.get('destination_type', 'queue')}": fields["destination"]}
    key = fields.get("routing_key", "")
    call.ask(operation, source=fields["source"], binding_key=key, arguments=_table(fields), **ends)


def _declare_user(call: Written, fields: Mapping[str, Any]) -> None:
    tags = [tag for tag in fields.get("tags", "").split(",") if tag]
    call.ask("put-user", user=fields["name"], entry={"password": fields["password"], "tags": tags})


def _declare_permission(call: Written, fields: Mapping[str, Any]) -> None:
    rights = {name: fields[name] for name in ("configure", "write", "read")}
    call.ask("set-permissions", user=fields["user"], vhost=call.options["vhost"], **rights)


def _declare_policy(operation: str, call: Written, fields: Mapping[str, Any]) -> None:
    rest = {"priority": int(fields.get("priority", 0)), "apply_to": fields.get("apply_to", "all")}
    definition = _table(fields, "definition")
    call.ask(operation, name=fields["name"], pattern=fields["pattern"], definition=definition, **rest)


def _as_client(call: Written, command: str, *words: str) -> None:
    """Run a command that logs in: as the given user, or as the image's."""
    login = call.options["login"]
    user = login.get("username", os.environ.get("RABBITMQ_DEFAULT_USER", "guest"))
    password = login.get("password", os.environ.get("RABBITMQ_DEFAULT_PASS", "guest"))
    vhost = [f"--vhost={call.options['vhost']}"] if call.options["vhost"] else []
    if _main(command, f"--user={user}", f"--password={password}", *vhost, *words) != EXIT_OK:
        raise Failed(f"{call.command} has failed")


def _publish(call: Written, fields: Mapping[str, Any]) -> None:
    to = [f"--exchange={fields['exchange']}"] if fields.get("exchange") else []
    key = f"--{'key' if to else 'queue'}={fields['routing_key']}"
    _as_client(call, "publish", *to, key, "--", fields["payload"])


def _get(call: Written, fields: Mapping[str, Any]) -> None:
    _as_client(call, "get", f"--count={fields.get('count', 1)}", fields["queue"])


Action = Callable[[Written, Mapping[str, Any]], None]


def _by_name(operation: str, name: str = "name") -> Action:
    return lambda call, fields: call.ask(operation, **{name: fields["name"]})


_ADMIN: Final[Mapping[tuple[str, str], Action]] = {
    ("declare", "queue"): _declare_queue,
    ("declare", "exchange"): _declare_exchange,
    ("declare", "binding"): partial(_binding, "bind"),
    ("declare", "vhost"): _by_name("add-vhost"),
    ("declare", "user"): _declare_user,
    ("declare", "permission"): _declare_permission,
    ("declare", "policy"): partial(_declare_policy, "set-policy"),
    ("declare", "operator_policy"): partial(_declare_policy, "set-operator-policy"),
    ("delete", "queue"): _by_name("delete-queue"),
    ("delete", "exchange"): _by_name("delete-exchange"),
    ("delete", "binding"): partial(_binding, "unbind"),
    ("delete", "vhost"): _by_name("delete-vhost"),
    ("delete", "user"): _by_name("delete-user", "user"),
    ("delete", "policy"): _by_name("clear-policy"),
    ("purge", "queue"): _by_name("purge-queue"),
    ("publish", ""): _publish,
    ("get", ""): _get,
}


CONFIG_FILE: Final = "/etc/rabbitmq/rabbitmq.conf"
CONFIG_FOLDER: Final = "/etc/rabbitmq/conf.d"
STARTED: Final = "Server startup complete"
"""The line of the log for which testcontainers and Helm charts wait."""
DEFAULTS: Final = ("the image", "listeners.tcp.default = 0.0.0.0:5672\nloopback_users.guest = false")
HTTP_PORT: Final = 15_672
PROMETHEUS_PORT: Final = 15_692


def run_server(given: Sequence[str]) -> int:
    """Run the broker until a signal stops it. ``--keys`` prints the known keys.

    The files are ``/etc/rabbitmq/rabbitmq.conf`` and those of ``/etc/rabbitmq/conf.d``, or those of
    ``RABBITMQ_CONFIG_FILE`` and ``RABBITMQ_CONFIG_FILES``. As in RabbitMQ's image, clients may connect from
    everywhere, guest too. Raises `ConfigError` if a file cannot be read or has an invalid value.
    """
    from amqp10broker.config.load import RABBITMQ_KEYS, load_rabbitmq

    if given == ["--keys"]:
        for row in RABBITMQ_KEYS:
            print(f"{row.key:<70} {row.setting or f'no equal: {row.note}'}")
        return EXIT_OK
    if given:
        raise ConfigError(
            f"rabbitmq-server {given[0]}",
            "is not an option",
            "configure it by rabbitmq.conf or the environment",
        )
    from amqp10broker.cli import serve as serving  # Trio and structlog

    config, warnings = load_rabbitmq(_files(), os.environ)
    config = replace(
        config,
        http_port=HTTP_PORT if config.http_port is None else config.http_port,
        prometheus_port=PROMETHEUS_PORT if config.prometheus_port is None else config.prometheus_port,
    )
    return serving.run(config, announce=lambda broker: (STARTED,), warnings=warnings)


def _files() -> Iterator[tuple[str, str]]:
    main = Path(os.environ.get("RABBITMQ_CONFIG_FILE", CONFIG_FILE))
    if not main.suffix:
        main = main.with_suffix(".conf")
    folder = Path(os.environ.get("RABBITMQ_CONFIG_FILES", CONFIG_FOLDER))
    yield DEFAULTS
    for path in [main, *sorted(folder.glob("*.conf"))]:
        if path.exists() or (path == main and "RABBITMQ_CONFIG_FILE" in os.environ):
            try:
                yield str(path), path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(str(path), f"cannot be read: {error}", "give a text file") from error
