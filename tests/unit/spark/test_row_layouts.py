"""The limits of a batch; what is in its rows is `tests/property/test_spark_rows.py`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from amqp10broker.client.message import data_message
from amqp10broker.spark import row_layouts
from amqp10broker.spark.errors import SparkSourceError
from amqp10broker.spark.row_layouts import RowDecoder


@pytest.mark.parametrize("count", [3, 30])
def test_more_bytes_than_an_arrow_batch_has_room_for(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in words: beyond 2 GiB the columns' offsets would be wrong."""
    payloads = [data_message(bytes(100))] * count
    monkeypatch.setattr(row_layouts, "_BATCH_BYTES_MAX", sum(map(len, payloads)) - 1)
    with pytest.raises(SparkSourceError, match=f"{count} messages are together larger than the 2 GiB"):
        RowDecoder("q").batch(payloads)
    assert RowDecoder("q").batch(payloads[1:]).num_rows == count - 1


def test_a_table_that_arrow_leaves_in_pieces() -> None:
    """As it does when text is longer than the encoded message that it was."""
    piece = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    with pytest.raises(SparkSourceError, match="4 messages are together larger"):
        row_layouts._whole(pa.Table.from_batches([piece, piece]))
    assert row_layouts._whole(pa.Table.from_batches([piece])) == piece
