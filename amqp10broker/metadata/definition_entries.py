"""Reading the entries of a definitions file: types and required keys, and errors that name the place.

A `DefinitionEntry` is one object of the file together with where it stands, so that complaints begin like
``definitions: queues[3].durable is "yes"; must be true or false``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from amqp10broker.errors import ConfigError, RefusedError
from amqp10broker.metadata.entries import ARGON2_KEY, SCRAM_KEY
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, ScramRecord

T = TypeVar("T")

LIMITS_COMPONENT: Final = "vhost-limits"
OPERATOR_COMPONENT: Final = "operator_policy"
# Bytes of salt and digest; what RabbitMQ writes.
_HASH_BYTES: Final = {
    PasswordAlgorithm.RABBIT_SHA256: 36,
    PasswordAlgorithm.RABBIT_SHA512: 68,
    PasswordAlgorithm.RABBIT_MD5: 20,
}
_REQUIRED: Final = object()


class DefinitionEntry:
    def __init__(self, place: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(place, f"is {shown(values)}", "must be an object: {...}")
        self.place = place
        self.values = values

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        return str(self._typed(key, str, "a string", default))

    def one_of(self, key: str, words: tuple[str, ...]) -> Any:
        text = self.text(key)
        if text not in words:
            raise self.fault(key, f"is {shown(text)}", f"must be {' or '.join(map(json.dumps, words))}")
        return text

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._typed(key, bool, "true or false", default))

    def integer(self, key: str, default: int) -> int:
        return int(self._typed(key, int, "an integer", default))

    def table(self, key: str) -> dict[str, Any]:
        """An object, or what Erlang's JSON writes for one: a list of pairs, empty for an empty one."""
        value = self.values.get(key)
        if value is None or value == []:
            return {}
        if isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
        ):
            return dict(value)
        return dict(self._typed(key, dict, "an object: {...}", _REQUIRED))

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise self.fault(key, "is missing", "must be given")
        return self.values[key]

    def tags(self) -> tuple[str, ...]:
        """A list of strings, or one string with commas, as old versions write it."""
        value = self.values.get("tags")
        if value is None:
            return ()
        if isinstance(value, str):
            return tuple(tag for each in value.split(",") if (tag := each.strip()))
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise self.fault("tags", f"is {shown(value)}", "must be a list of strings, or one string with commas")

    def limits(self) -> dict[str, Any]:
        """Limits: an object, or a list of objects."""
        value = self.values.get("limits")
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return {name: limit for each in value for name, limit in each.items()}
        return self.table("limits")

    def fault(self, key: str, problem: str, allowed: str) -> ConfigError:
        return ConfigError(f"{self.place}.{key}", problem, allowed)

    def asking(self, ask: Callable[[], T]) -> T:
        """Do something with this entry; a refusal then names the place in the file. Raises `ConfigError` if
        it was refused.
        """
        try:
            return ask()
        except RefusedError as error:
            raise ConfigError(
                self.place, f"is refused: {error.description}", "change the file, or what is there already"
            ) from error

    def _typed(self, key: str, kind: type, what: str, default: Any) -> Any:
        value = self.values.get(key, default)
        if value is _REQUIRED:
            raise self.fault(key, "is missing", f"must be {what}")
        # Exact types: true is an int to Python, but no number to a reader.
        if type(value) is not kind:
            raise self.fault(key, f"is {shown(value)}", f"must be {what}")
        return value


def entries_of(document: Mapping[str, Any], section: str) -> list[DefinitionEntry]:
    """The objects of one section, in order; none if it is missing. Raises `ConfigError` if it is no list, or
    one of them no object.
    """
    values = document.get(section, [])
    if not isinstance(values, list):
        raise ConfigError(f"definitions: {section}", f"is {shown(values)}", "must be a list: [...]")
    return [DefinitionEntry(f"definitions: {section}[{at}]", each) for at, each in enumerate(values)]


def password_of(
    entry: DefinitionEntry, make_password: Callable[[str], PasswordRecord] | None
) -> PasswordRecord | None:
    """Return the password record of a user's entry; None if login with a password is not possible. Raises
    `ConfigError` if there is neither hash nor password, or the hash is invalid.
    """
    if ARGON2_KEY in entry.values and "password" not in entry.values:
        return _argon2_of(entry)
    if "password_hash" not in entry.values:
        if "password" not in entry.values:
            raise entry.fault(
                "password_hash", "is missing", 'must be given, or password; "" lets nobody log in with one'
            )
        password = entry.text("password")
        if make_password is None or not password:
            raise entry.fault("password", "cannot be used", "must not be empty; or give password_hash")
        make = make_password
        return entry.asking(lambda: make(password))
    value = entry.text("password_hash")
    if not value:
        return None
    # A file without it is of a version before 3.6, which hashed with MD5, or written by hand, for which
    # RabbitMQ takes its present default, or a client's that says nothing of it. The length tells which.
    size = len(_decoded(value) or b"")
    fitting = (algorithm for algorithm, its_size in _HASH_BYTES.items() if its_size == size)
    assumed = next(fitting, PasswordAlgorithm.RABBIT_SHA256)
    named = entry.text("hashing_algorithm", assumed.value)
    known = {each.value: each for each in PasswordAlgorithm if each is not PasswordAlgorithm.PLAIN}
    algorithm = known.get(named)
    if algorithm is None:
        raise entry.fault("hashing_algorithm", f"is {shown(named)}", f"must be one of {', '.join(known)}")
    if algorithm is PasswordAlgorithm.ARGON2ID:
        good = value.startswith("$argon2id$")
    else:
        good = len(_decoded(value) or b"") == _HASH_BYTES[algorithm]
    if not good:
        # The hash itself is not repeated: it goes into logs.
        raise entry.fault("password_hash", "cannot be read", f"must be as {algorithm.value} writes it")
    return PasswordRecord(algorithm, value, _scram_of(entry))


def _argon2_of(entry: DefinitionEntry) -> PasswordRecord:
    value, sha256 = entry.text(ARGON2_KEY), entry.text("password_hash", "")
    if not value.startswith("$argon2id$"):
        raise entry.fault(ARGON2_KEY, "cannot be read", "must be as argon2id writes it")
    algorithm = PasswordAlgorithm.RABBIT_SHA256
    if sha256 and len(_decoded(sha256) or b"") != _HASH_BYTES[algorithm]:
        raise entry.fault("password_hash", "cannot be read", f"must be as {algorithm.value} writes it")
    return PasswordRecord(PasswordAlgorithm.ARGON2ID, value, _scram_of(entry), sha256 or None)


def _scram_of(entry: DefinitionEntry) -> ScramRecord | None:
    if SCRAM_KEY not in entry.values:
        return None
    iterations, *encoded = entry.text(SCRAM_KEY).split(":")
    decoded = [_decoded(each) for each in encoded]
    if len(decoded) != 3 or not all(decoded) or not iterations.isdecimal():
        raise entry.fault(
            SCRAM_KEY, "cannot be read", "must be iterations:salt:stored-key:server-key in base64"
        )
    salt, stored_key, server_key = (each or b"" for each in decoded)
    return ScramRecord(salt, int(iterations), stored_key, server_key)


def _decoded(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def shown(value: object) -> str:
    """A value as it stands in the file, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
