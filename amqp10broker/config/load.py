"""Merges the sources of settings: command line before environment before file before default.

Each source is read into `Given` values, which contain their origin, so that an error can name the key,
variable or flag to correct. rabbitmq.conf, and the environment of RabbitMQ's image, are sources as well:
`RABBITMQ_KEYS` is the one table of equals, by RabbitMQ's configuration guide and the README of its image. The
only I/O here is reading the one TOML file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, Final, TypeVar

from amqp10broker.config.setting_types import describe, from_file
from amqp10broker.config.settings import (
    CONFIRM_DELAY,
    DEFAULT_USERS,
    FLOW_SETTINGS,
    OVERRIDE_SETTINGS,
    QUEUE_PATTERN,
    SETTINGS,
    Config,
    FaultInjection,
    FlowOverride,
    FlowSettings,
    QueueDeclaration,
    User,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, closest, hint

T = TypeVar("T")

VARIABLE_PREFIX: Final = "AMQP10BROKER_"
CONFIG_VARIABLE: Final = "AMQP10BROKER_CONFIG"
URL_VARIABLE: Final = "AMQP10BROKER_URL"
"""The broker's URL for clients, commands and examples; a starting broker ignores it."""
_LISTED_MAX: Final = 20
"""The most known names that an error lists."""
_LINE: Final = re.compile(r"\s*\(at line (\d+), column (\d+)\)")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and the place where it is written."""

    value: Any
    source: str


def load(
    *, file: str | PathLike[str] | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Config:
    """Merge the sources; arguments and errors are those of `Config.load`."""
    path = fspath(file) if file is not None else environ.get(CONFIG_VARIABLE)
    given = read_file(path) if path else {}
    given |= read_environment(environ)
    given |= read_flags(flags)
    return build(given)


def build(given: Mapping[str, Given]) -> Config:
    """Make the record of values that were checked one by one; check those that depend on each other."""
    values: dict[str, Any] = {name: each.value for name, each in given.items()}
    values["flow"] = FlowSettings(**{name: values.pop(name) for name in FLOW_SETTINGS if name in values})

    users = values.get("users", DEFAULT_USERS)
    if "anonymous_login_user" not in given:
        # The default names guest, which does not exist if other users are listed.
        values["anonymous_login_user"] = "guest" if "guest" in [user.name for user in users] else ""
    try:
        return Config(**values)
    except ConfigError as error:
        name = error.source.removeprefix("Config.")
        raise ConfigError(given[name].source, error.problem, error.allowed) from None


def read_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    """Read command line options. `user` and `confirm_delay` are lists of text, the rest scalars."""
    given: dict[str, Given] = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name == "user":
            given["users"] = Given(tuple(_user_of(each) for each in _texts(value)), "flag --user")
        elif name in ("confirm_delay", "sync_delay"):
            source = f"flag --{name.replace('_', '-')}"
            delays: Any = (
                tuple(_confirm_delay_of(each) for each in _texts(value))
                if name == "confirm_delay"
                else CONFIRM_DELAY.parse(str(value), source)
            )
            before = given.get("fault_injection", Given(FaultInjection(), source)).value
            given["fault_injection"] = Given(replace(before, **{f"{name}_ms": delays}), source)
        elif name in SETTINGS:
            setting = SETTINGS[name]
            source = f"flag {setting.flag}"
            if setting.reads is not None:
                value = from_file(value)
            if isinstance(value, str):
                value = setting.parse(value, source)
            setting.check(value, source)
            given[name] = Given(value, source)
        else:
            flag = f"--{name.replace('_', '-')}"
            raise _unknown(f"flag {flag}", flag, [setting.flag for setting in SETTINGS.values()])
    return given


def read_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    """Read variables that begin with ``AMQP10BROKER_``; an unknown one is refused."""
    given: dict[str, Given] = {}
    known = {setting.variable: name for name, setting in SETTINGS.items()}
    for variable, written in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable in (CONFIG_VARIABLE, URL_VARIABLE):
            continue
        source = f"variable {variable}"
        name = known.get(variable)
        if name is None:
            raise _unknown(source, variable, [*known, CONFIG_VARIABLE, URL_VARIABLE])
        given[name] = Given(SETTINGS[name].parse(written, source), source)
    return given


def read_file(path: str) -> dict[str, Given]:
    import tomllib

    try:
        with open(path, "rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(
            path, f"cannot be read: {error.strerror}", "give a TOML file that you may read"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(path, f"is not UTF-8 at byte {error.start}", "TOML files are UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _LINE.search(message)
        where = f"{path}:{place[1]}:{place[2]}" if place else path
        raise ConfigError(where, f"is not TOML: {_LINE.sub('', message)}", "see https://toml.io") from error
    return parse_file(document, path)


def parse_file(document: Mapping[str, Any], path: str) -> dict[str, Given]:
    """Check a parsed TOML document key by key."""
    given: dict[str, Given] = {}
    for key, value in document.items():
        source = f"{path}: {key}"
        if key in SETTINGS:
            if SETTINGS[key].reads is not None:
                value = from_file(value)
            SETTINGS[key].check(value, source)
            given[key] = Given(value, source)
        elif key == "loopback_users":
            given[key] = Given(_strings(value, source), source)
        elif key == "fault":
            given["fault_injection"] = Given(_faults(value, path), source)
        elif key in _TABLES:
            field, record, known, required = _TABLES[key]
            made = []
            for at, row in enumerate(_tables(value, source), 1):
                where = f"{path}: [[{key}]] number {at}"
                _check_keys(row, where, known, required)
                made.append(_made(where, record, **row))
            given[field] = Given(tuple(made), source)
        else:
            raise _unknown(source, key, [*SETTINGS, "loopback_users", "fault", *_TABLES])
    return given


# TOML array of tables -> field of Config, record of one row, its keys, and those that must be given
_TABLES: Final[dict[str, tuple[str, Callable[..., Any], Iterable[str], tuple[str, ...]]]] = {
    "override": ("overrides", FlowOverride, OVERRIDE_SETTINGS, ()),
    "user": ("users", User, ("name", "password"), ("name", "password")),
    "queue": ("queues", QueueDeclaration, ("name", "durable", "arguments"), ("name",)),
}


def _faults(value: object, path: str) -> FaultInjection:
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: fault", f"is {describe(value)}", "must be a table: [[fault.confirm_delay]]"
        )
    _check_keys(value, f"{path}: fault", ("confirm_delay", "sync_delay_ms"))
    delays: list[tuple[str, int]] = []
    for at, row in enumerate(_tables(value.get("confirm_delay", []), f"{path}: fault.confirm_delay"), 1):
        source = f"{path}: [[fault.confirm_delay]] number {at}"
        _check_keys(row, source, ("queue", "ms"), ("queue", "ms"))
        QUEUE_PATTERN.check(row["queue"], f"{source}, queue")
        CONFIRM_DELAY.check(row["ms"], f"{source}, ms")
        delays.append((row["queue"], row["ms"]))
    sync_delay_ms = value.get("sync_delay_ms", 0)
    CONFIRM_DELAY.check(sync_delay_ms, f"{path}: fault.sync_delay_ms")
    return FaultInjection(tuple(delays), sync_delay_ms)


def _made(source: str, record: Callable[..., T], **values: Any) -> T:
    try:
        return record(**values)
    except ConfigError as error:
        _, _, key = error.source.partition(".")
        raise ConfigError(f"{source}, {key}" if key else source, error.problem, error.allowed) from None


def _check_keys(row: Mapping[str, Any], source: str, known: Any, required: tuple[str, ...] = ()) -> None:
    for key in row:
        if key not in known:
            raise _unknown(f"{source}, {key}", key, list(known))
    for key in required:
        if key not in row:
            raise ConfigError(f"{source}, {key}", "is missing", "must be given")


def _tables(value: object, source: str) -> list[dict[str, Any]]:
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    key = source.rpartition(": ")[2]
    raise ConfigError(source, f"is {describe(value)}", f"must be an array of tables: [[{key}]]")


def _strings(value: object, source: str) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ConfigError(source, f"is {describe(value)}", "must be a list of strings")


def _texts(value: object) -> list[str]:
    assert isinstance(value, list | tuple), value
    return [str(each) for each in value]


def _user_of(written: str) -> User:
    name, colon, password = written.partition(":")
    if not colon or not name or not password:
        # The text may contain a password: it is not repeated.
        raise ConfigError("flag --user", "is not NAME:PASSWORD", "must give both, separated by a colon")
    return _made("flag --user", User, name=name, password=password)


def _confirm_delay_of(written: str) -> tuple[str, int]:
    source = "flag --confirm-delay"
    pattern, equals, delay = written.rpartition("=")
    if not equals or not pattern:
        raise ConfigError(source, f"is {describe(written)}", "must be QUEUE-PATTERN=MILLISECONDS")
    delay_ms = CONFIRM_DELAY.parse(delay, source)
    assert isinstance(delay_ms, int)
    return pattern, delay_ms


def _unknown(source: str, name: str, known: Iterable[str]) -> ConfigError:
    names = sorted(known)
    remedy = _rabbitmq_equal(name)
    if remedy is None and len(names) > _LISTED_MAX and closest(name, names) is None:
        remedy = "docs/settings.md lists them"
    return ConfigError(source, "is not a setting", remedy or hint(name, names))


# --- RabbitMQ's files and environment --------------------------------------------------------------

_CONF_LINE: Final = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=\s*(.*?)\s*$")


def _milliseconds(written: str) -> str:
    return str(int(written) * 1_000)


def _port(written: str) -> str:
    return written.rpartition(":")[2]


def _switch(written: str) -> str:
    return {"on": "true", "off": "false"}.get(written, written)


@dataclass(frozen=True, slots=True)
class Row:
    """A key of rabbitmq.conf. `setting`: its equal; empty if there is none, with the reason in `note`."""

    key: str
    setting: str = ""
    convert: Callable[[str], str] = str
    note: str = ""


_LISTS: Final = "'amqp10broker rabbitmq-server --keys' lists those that have one"
_NO_STREAM_PROTOCOL: Final = "streams are served over AMQP"
_SAME: Final = (
    *("default_vhost", "default_queue_type", "channel_max", "connection_max"),
    *("session_max_per_connection", "link_max_per_session", "consumer_max_per_channel"),
    *("queue_leader_locator", "max_link_credit", "max_incoming_window", "max_queue_credit"),
)
"""Keys that are settings of the same name."""
RABBITMQ_KEYS: Final = (
    *(Row(name, name) for name in _SAME),
    Row("listeners.tcp.*", "port", _port),
    Row("listeners.ssl.*", "tls_port", _port),
    Row("ssl_options.certfile", "tls_certificate"),
    Row("ssl_options.keyfile", "tls_key"),
    Row("ssl_options.cacertfile", "tls_ca"),
    Row("ssl_options.password", "tls_key_password"),
    Row("vm_memory_high_watermark.relative", "vm_memory_high_watermark"),
    Row("vm_memory_high_watermark.absolute", "vm_memory_high_watermark"),
    Row("disk_free_limit.absolute", "disk_free_limit"),
    Row("disk_free_limit.relative", "disk_free_limit", "mem_relative {}".format),
    Row("max_message_size", "max_message_size_bytes"),
    Row("frame_max", "max_frame_size_bytes"),
    Row("heartbeat", "idle_timeout_ms", _milliseconds),
    Row("handshake_timeout", "handshake_timeout_ms"),
    Row("anonymous_login_user", "anonymous_login_user", lambda name: "" if name == "none" else name),
    Row("collect_statistics_interval", "collect_statistics_interval_ms"),
    Row("load_definitions", "definitions"),
    Row("management.load_definitions", "definitions"),
    Row("definitions.local.path", "definitions"),
    Row("management.tcp.port", "http_port"),
    Row("management.tcp.ip", "http_host"),
    Row("management.path_prefix", "http_path_prefix"),
    Row("prometheus.tcp.port", "prometheus_port"),
    Row("log.level", "log_level"),
    Row("log.console.level", "log_level"),
    Row("log.console.formatter", "log_format", lambda form: "json" if form == "json" else "console"),
    Row("deprecated_features.permit.global_qos", "permit_global_qos"),
    Row("deprecated_features.permit.transient_nonexcl_queues", "permit_transient_nonexcl_queues"),
    Row("deprecated_features.permit.amqp_address_v1", "permit_amqp_address_v1"),
    Row("deprecated_features.permit.queue_master_locator", "permit_queue_master_locator"),
    Row("auth_oauth2.resource_server_id", "oauth2_resource_server_id"),
    Row("auth_oauth2.jwks_uri", "oauth2_jwks_uri"),
    Row("auth_oauth2.issuer", "oauth2_issuer"),
    Row("auth_oauth2.scope_prefix", "oauth2_scope_prefix"),
    Row("auth_oauth2.additional_scopes_key", "oauth2_additional_scopes_key"),
    Row("auth_oauth2.verify_aud", "oauth2_verify_aud"),
    Row("quorum_queue.initial_cluster_size", "quorum_initial_group_size"),
    Row("quorum_queue.continuous_membership_reconciliation.enabled", "quorum_reconciliation", _switch),
    Row(
        "quorum_queue.continuous_membership_reconciliation.target_group_size",
        "quorum_reconciliation_target_group_size",
    ),
    Row(
        "quorum_queue.continuous_membership_reconciliation.auto_remove",
        "quorum_reconciliation_auto_remove",
        _switch,
    ),
    Row("quorum_queue.continuous_membership_reconciliation.interval", "quorum_reconciliation_interval_ms"),
    Row(
        "quorum_queue.continuous_membership_reconciliation.trigger_interval",
        "quorum_reconciliation_trigger_interval_ms",
    ),
    Row(
        "quorum_queue.property_equivalence.relaxed_checks_on_redeclaration",
        "quorum_relaxed_checks_on_redeclaration",
        _switch,
    ),
    Row("quorum_queue.commands_soft_limit", "credit_flow_initial"),
    Row("raft.segment_max_entries", note="the journal has files by size, see journal_file_bytes"),
    Row("raft.wal_max_size_bytes", "journal_file_bytes"),
    Row("dead_letter_worker_consumer_prefetch", "dead_letter_prefetch"),
    Row("cluster_name", note="set it with: amqp10broker cluster set-name NAME"),
    Row("cluster_formation.*", note="write cluster_nodes, docs/cluster.md"),
    Row("consumer_timeout", note="write the policy key consumer-timeout"),
    Row("log.*", note="the log goes to standard error"),
    Row("stream.*", note=_NO_STREAM_PROTOCOL),
    Row("mqtt.*", note="MQTT is not served"),
    Row("stomp.*", note="STOMP is not served"),
)
"""Keys without ``rabbit.``; ``*`` stands for any rest. The first row that matches counts."""
IMAGE_VARIABLES: Final[Mapping[str, str]] = {
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
    "RABBITMQ_NODE_PORT": "listeners.tcp.default",
    "RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "vm_memory_high_watermark.relative",
}
_IN_FORM: Final = (
    *("ssl_options.verify", "ssl_options.fail_if_no_peer_cert", "default_user", "default_pass"),
    *("default_permissions", "loopback_users", "auth_backends", "log.console"),
)
"""The prefixes of keys that `_special` reads, or that describe the broker's fixed behaviour."""


def _rabbitmq_equal(name: str) -> str | None:
    """Return the replacement for RabbitMQ's name of a setting, as a sentence; None if it is not one."""
    row = _row(name.removeprefix("rabbit."))
    if row is None:
        return None
    return f"RabbitMQ's {row.key} is {row.setting} here" if row.setting else f"it has no equal: {row.note}"


def load_rabbitmq(files: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> tuple[Config, list[str]]:
    """Make a configuration of rabbitmq.conf and the environment of RabbitMQ's image.

    Args:
        files: name and text of each file, in the order in which later ones take precedence.
        environ: ``RABBITMQ_...``, and ``AMQP10BROKER_...``, which take precedence.

    Returns the configuration, and one warning with all keys that have no equal, so that a file is taken as it
    is. Raises `ConfigError` if a line is not ``key = value``, or a value is not allowed.
    """
    keys = {key: given for name, text in files for key, given in _lines(name, text)}
    for variable, key in IMAGE_VARIABLES.items():
        if variable in environ:
            keys[key] = Given(environ[variable], f"variable {variable}")
    given = _special(keys)
    unknown = []
    for key, written in keys.items():
        row = _row(key)
        if row is None or not row.setting:
            if not key.startswith(_IN_FORM):
                meant = closest(key, [each.key for each in RABBITMQ_KEYS])
                said = row.note if row is not None else f"did you mean {meant}?" if meant else ""
                unknown.append(f"{key} ({said})" if said else key)
            continue
        setting = SETTINGS[row.setting]
        try:
            value = row.convert(str(written.value))
        except ValueError:
            value = str(written.value)
        given[row.setting] = Given(setting.parse(value, written.source), written.source)
        if row.key == "listeners.tcp.*" and ":" in str(written.value):
            given["host"] = Given(str(written.value).rpartition(":")[0].strip("[]"), written.source)
    config = build(given | read_environment(environ))
    if not unknown:
        return config, []
    names = ", ".join(sorted(unknown))
    return config, [f"settings of rabbitmq.conf without an equal: {names}; take them out, {_LISTS}"]


def _row(key: str) -> Row | None:
    for row in RABBITMQ_KEYS:
        if row.key == key or (row.key.endswith("*") and key.startswith(row.key[:-1])):
            return row
    return None


def _lines(name: str, text: str) -> Iterator[tuple[str, Given]]:
    for number, line in enumerate(text.splitlines(), 1):
        written = line.partition("#")[0] if "'" not in line else line
        if not written.strip():
            continue
        found = _CONF_LINE.fullmatch(written)
        if found is None:
            raise ConfigError(f"{name}:{number}", f"is {line.strip()!r}", "write: key = value")
        value = found[2]
        quoted = len(value) > 1 and value[0] == value[-1] == "'"
        yield (
            found[1].removeprefix("rabbit."),
            Given(value[1:-1] if quoted else value, f"{name}:{number}, {found[1]}"),
        )


def _special(keys: Mapping[str, Given]) -> dict[str, Given]:
    """Read the keys that make up a setting together: the user, the places of logins, the backends."""
    given: dict[str, Any] = {}
    user, password = keys.get("default_user"), keys.get("default_pass")
    if user is not None or password is not None:
        name = "guest" if user is None else user.value
        secret = "guest" if password is None else password.value
        source = (user or password or Given(None, "")).source
        given["users"] = Given((User(name, secret),), source)
    backends = [keys[key] for key in sorted(keys) if key.startswith("auth_backends.")]
    if backends:
        names = {"rabbit_auth_backend_oauth2": "oauth2", "rabbit_auth_backend_internal": "internal"}
        value = ",".join(names.get(each.value, each.value) for each in backends)
        SETTINGS["auth_backends"].check(value, backends[0].source)
        given["auth_backends"] = Given(value, backends[0].source)
    verify = keys.get("ssl_options.verify")
    if verify is not None and verify.value == "verify_peer":
        demanded = keys.get("ssl_options.fail_if_no_peer_cert", verify).value == "true"
        given["tls_verify"] = Given("required" if demanded else "optional", verify.source)
    loopback = keys.get("loopback_users")
    if loopback is not None and loopback.value == "none":
        given["loopback_users"] = Given((), loopback.source)
    allowed = keys.get("loopback_users.guest")
    if allowed is not None and allowed.value == "false":
        given["loopback_users"] = Given((), allowed.source)
    return given
