"""Addresses of clients, as logins take turns by them."""

from __future__ import annotations

import pytest

from amqp10broker.runtime.connections.sockets import turn_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("in-process", "in-process"),
    ],
)
def test_what_counts_as_one_address(host: str, address: str) -> None:
    """An IPv6 client has a network of 64 bits to itself, and must not have as many turns."""
    assert turn_address(host) == address
    assert turn_address(address) == address
