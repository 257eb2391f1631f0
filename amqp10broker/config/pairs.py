"""Settings that are lists of pairs: ``name=value,name=value``. Their parsers raise ValueError."""

from __future__ import annotations

from typing import Final

SIGNING_KEYS_FORM: Final = "must be ID=FILE, or several with commas between"
SCOPE_ALIASES_FORM: Final = "must be ALIAS=SCOPE SCOPE, or several with commas between"


def signing_keys(text: str) -> dict[str, str]:
    """Parse the files of keys, by key id."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in pair.partition("="))
        if not name or not value or name in found:
            raise ValueError(pair)
        found[name] = value
    return found


def scope_aliases(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the replacements of scopes, by alias."""
    return {alias: tuple(scopes.split()) for alias, scopes in signing_keys(text).items()}
