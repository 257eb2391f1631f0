"""Reply texts."""

from __future__ import annotations

from amqp10broker.protocols.amqp091.errors import (
    AmqpHardError,
    ReplyCode,
    cut_reply_text,
)


def test_a_reply_text_of_more_than_255_bytes_is_cut() -> None:
    """It ends with three dots then, and has 255 bytes."""
    error = AmqpHardError(ReplyCode.SYNTAX_ERROR, "x" * 300)
    assert error.reply_text == "SYNTAX_ERROR - " + "x" * 237 + "..."
    assert len(error.reply_text) == 255
    assert cut_reply_text("y" * 255) == "y" * 255


def test_a_cut_reply_text_keeps_whole_characters() -> None:
    """A character of several bytes is left out rather than halved."""
    cut = cut_reply_text("é" * 200)
    assert cut == "é" * 126 + "..."
    assert len(cut.encode()) == 255
