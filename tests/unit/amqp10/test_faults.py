"""How an error travels."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.faults import DESCRIPTION_BYTES_MAX, to_error


@pytest.mark.parametrize("sign", ["x", "é", "\N{GRINNING FACE}"])
def test_a_long_description_is_cut(sign: str) -> None:
    """What a client sent is repeated in texts; an error must fit a frame all the same (2.8.14)."""
    for count in (DESCRIPTION_BYTES_MAX // 4, DESCRIPTION_BYTES_MAX, 1_000_000):
        text = sign * count
        error = to_error(AmqpLinkError(Condition.INVALID_FIELD, text))
        assert error is not None
        assert error.description is not None
        size = len(error.description.encode())
        if len(text.encode()) <= DESCRIPTION_BYTES_MAX:
            assert error.description == text
        else:
            assert DESCRIPTION_BYTES_MAX - 4 < size <= DESCRIPTION_BYTES_MAX
            assert text.startswith(error.description.removesuffix("..."))
