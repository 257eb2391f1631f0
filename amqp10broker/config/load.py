"""Merges the sources of settings: command line before environment before file before default.

Each source is read into `Given` values, which contain their origin, so that an error can name the key,
variable or flag to correct. The only I/O here is reading the one TOML file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, Final, TypeVar

from amqp10broker.config.records import (
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
from amqp10broker.config.settings import describe, from_file
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, closest, hint

T = TypeVar("T")

VARIABLE_PREFIX: Final = "AMQP10BROKER_"
CONFIG_VARIABLE: Final = "AMQP10BROKER_CONFIG"
URL_VARIABLE: Final = "AMQP10BROKER_URL"
"""The broker's URL for clients, commands and examples; a starting broker ignores it."""
_LISTED_MAX: Final = 20
"""So many known names an error lists."""
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
        # The default names guest, which does not exist once other users are listed.
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
    from amqp10broker.config.rabbitmq_conf import equal_of  # for this error alone

    names = sorted(known)
    remedy = equal_of(name)
    if remedy is None and len(names) > _LISTED_MAX and closest(name, names) is None:
        remedy = "docs/settings.md lists them"
    return ConfigError(source, "is not a setting", remedy or hint(name, names))
