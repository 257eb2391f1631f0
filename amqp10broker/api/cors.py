"""Cross-origin resource sharing: the pages of other origins that may read the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.dataclass import dataclass

MAX_AGE_S: Final = 1800
_NEVER: Final = ("null", "*")


@dataclass(frozen=True, slots=True)
class Cors:
    """The permitted origins; none by default."""

    origins: tuple[str, ...] = ()
    max_age_s: int = MAX_AGE_S

    def headers(self, request: Mapping[str, str], *, allow: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return the headers of an answer."""
        origin = request.get("origin", "")
        if not origin or origin in _NEVER:
            return ()
        if origin in self.origins:
            granted: tuple[tuple[str, str], ...] = (
                ("access-control-allow-origin", origin),
                ("access-control-allow-credentials", "true"),
            )
        elif "*" in self.origins:
            granted = (("access-control-allow-origin", "*"),)
        else:
            return ()
        if allow is None:
            return granted
        asked = request.get("access-control-request-headers")
        return (
            *granted,
            ("access-control-allow-methods", allow),
            *((("access-control-allow-headers", asked),) if asked else ()),
            ("access-control-max-age", str(self.max_age_s)),
        )
