"""Encoding and decoding of values: the AMQP 1.0 type system on the wire (part 1, section 1.6).

The API of the codec: `decoder` reads, `skipper` walks, `encoder` writes, `types` holds the values. Composites
with typed fields are in `performatives`.
"""

from __future__ import annotations

from amqp10broker.protocols.amqp10.decoder import decode
from amqp10broker.protocols.amqp10.encoder import array_of, encode
from amqp10broker.protocols.amqp10.skipper import skip

__all__ = ["array_of", "decode", "encode", "skip"]
