"""Addresses of termini: what they name, and what is refused."""

from __future__ import annotations

import pytest

from amqp10broker.routing.address import BadAddress, ExchangeAddress, QueueAddress, parse, queue_address


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("orders", QueueAddress("orders", declare=True)),
        ("/queues/a%2Fb%20c%25", QueueAddress("a/b c%")),
        ("/exchanges/x", ExchangeAddress("x", "")),
        ("/exchanges/x/", ExchangeAddress("x", "")),
        ("/exchanges/x/a%2Fb", ExchangeAddress("x", "a/b")),
    ],
)
def test_an_address_names_a_queue_or_an_exchange(address: str, named: object) -> None:
    """Segments are percent-decoded, a bare name is taken as it is."""
    assert parse(address) == named


@pytest.mark.parametrize("name", ["q\n1", "q1\r", "\r\n"])
def test_a_line_end_in_a_bare_name_is_refused(name: str) -> None:
    """A declaration drops line ends: the queue would be another one than permissions were checked for."""
    with pytest.raises(BadAddress, match="line end"):
        parse(name)


def test_the_address_of_a_queue_is_read_back() -> None:
    assert parse(queue_address("a/b c%\n")) == QueueAddress("a/b c%\n")
