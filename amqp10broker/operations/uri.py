"""The URI of a management request: path segments and query values, percent-decoded (RFC 3986)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from amqp10broker.dataclass import dataclass

_ALLOWED: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")


class UriError(ValueError):
    """The text is not a valid URI of a management request; the message contains the place."""


@dataclass(frozen=True, slots=True)
class Uri:
    """A parsed URI. `segments`: of the path, still percent-encoded, since a segment may have structure of its
    own.
    """

    segments: tuple[str, ...]
    query: Mapping[str, str]


def parse_uri(text: str) -> Uri:
    """Parse path and query of a URI. Raises `UriError` if a character that must be percent-encoded, no path
    that begins with a slash, a fragment, or a query that is not a list of ``name=value``.
    """
    end = _ALLOWED.match(text)
    assert end is not None  # it matches the empty text, too
    if end.end() != len(text):
        raise UriError(f"{text[end.end()]!r} at character {end.end()} must be percent-encoded")
    path, question_mark, query = text.partition("?")
    if not path.startswith("/"):
        raise UriError("it does not begin with '/'")
    values: dict[str, str] = {}
    for pair in query.split("&") if question_mark else ():
        # As forms write it: RabbitMQ reads queries so, and clients write a space as a plus sign.
        name, equals, value = pair.replace("+", "%20").partition("=")
        if not equals or not name:
            raise UriError(f"'{pair}' in the query is not name=value")
        if percent_decoded(name) in values:
            raise UriError(f"'{percent_decoded(name)}' stands in the query twice")
        values[percent_decoded(name)] = percent_decoded(value)
    return Uri(tuple(path[1:].split("/")), values)


def percent_decoded(segment: str) -> str:
    """Undo percent-encoding; ``+`` is a plus sign here, in a path. Raises `UriError` if a percent sign
    without two hexadecimal digits, or bytes that are not UTF-8.
    """
    if re.search("%(?![0-9A-Fa-f]{2})", segment):
        raise UriError(f"bad percent sequence in '{segment}'; a literal '%' is %25")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise UriError(f"'{segment}' is not UTF-8 after percent-decoding") from None
