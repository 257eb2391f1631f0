"""The secret that the nodes of a cluster share, in a file of its own for its owner only."""

from __future__ import annotations

import os
import stat
from typing import Final

from amqp10broker import portable
from amqp10broker.errors import ConfigError

BYTES_MIN: Final = 16
BYTES_MAX: Final = 255
_SOURCE: Final = "cluster_secret_file"


def read_secret(path: str) -> bytes:
    """The secret: what the file has, without white space around it. Raises `ConfigError` if it cannot be
    read, others may read it, or it holds too little or too much.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            secret = file.read(2 * BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(
            f"{_SOURCE} {path}",
            f"cannot be read: {error.strerror}",
            "copy it from another node; of the first, make it with 'amqp10broker cluster new-secret FILE'",
        ) from error
    if portable.open_to_others(found):
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        raise ConfigError(
            f"{_SOURCE} {path}", f"may be read by others ({mode})", "take that away with chmod 600"
        )
    if not BYTES_MIN <= len(secret) <= BYTES_MAX:
        raise ConfigError(
            f"{_SOURCE} {path}", f"holds {len(secret)} bytes", f"must hold {BYTES_MIN} to {BYTES_MAX}"
        )
    return secret
