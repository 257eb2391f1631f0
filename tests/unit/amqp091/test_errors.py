"""Reply texts."""

from __future__ import annotations

from amqp10broker.protocols.amqp091.errors import (
    AmqpChannelError,
    AmqpHardError,
    DecodeError,
    ReplyCode,
    ReplyScope,
    cut_reply_text,
    scope_of,
)


def test_a_reply_text_is_the_name_of_the_code_and_the_text() -> None:
    """Clients show it, people look it up."""
    error = AmqpChannelError(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'", 50, 10)
    assert error.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (error.class_id, error.method_id) == (50, 10)


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


def test_bytes_that_cannot_be_read_are_a_syntax_error() -> None:
    """502, whatever could not be read."""
    assert DecodeError("short string cut off").code is ReplyCode.SYNTAX_ERROR


def test_an_unknown_code_ends_the_connection() -> None:
    """The careful reading of a code that the specification does not have."""
    assert scope_of(599) is ReplyScope.CONNECTION
