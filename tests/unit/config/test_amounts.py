"""Amounts of memory and disk: RabbitMQ's unit words, and what a number without a unit means."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.config import Config
from amqp10broker.config.settings import Amount, disk_limit, memory_watermark


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("1000", 1000),
        ("0MB", 0),
        ("10B", 10),
        ("10k", 10_000),
        ("10K", 10_000),
        ("10kB", 10_000),
        ("10KB", 10_000),
        ("10MB", 10_000_000),
        ("10Mb", 10_000_000),
        ("10m", 10_000_000),
        ("10G", 10_000_000_000),
        ("10GB", 10_000_000_000),
        ("10T", 10**13),
        ("1PB", 10**15),
        ("10kiB", 10_240),
        ("10Ki", 10_240),
        ("10MiB", 10_485_760),
        ("10mi", 10_485_760),
        ("10GiB", 10_737_418_240),
        ("1Ti", 2**40),
        ("2PiB", 2**51),
        ("absolute 512MB", 512_000_000),
        ("absolute 1073741824", 1_073_741_824),
    ],
)
def test_units_are_rabbitmqs(written: str, size_bytes: int) -> None:
    """A letter alone and with B counts by 1000, with i by 1024."""
    assert disk_limit(written) == Amount(size_bytes=size_bytes)
    assert str(disk_limit(written)) == f"{size_bytes} bytes"


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "MB", "10 MB", "10XB", "10iB", "10i", "-1", "-1MB", "1.5GB", "1e9", "1_000"),
        *("absolute", "absolute 0.5", "about 10MB", "relative 10MB", "absolute 10 MB", "nan", "inf"),
        *("1" * 19, "\u0661\u0660MB"),
    ],
)
def test_no_amount(written: str) -> None:
    for read in (disk_limit, memory_watermark):
        with pytest.raises(ValueError, match="."):
            read(written)


def test_a_number_without_a_unit_is_a_share_for_memory_and_bytes_for_disk() -> None:
    """As `rabbitmqctl set_vm_memory_high_watermark` and `set_disk_free_limit` take it."""
    assert memory_watermark("0.6") == Amount(share=0.6)
    assert memory_watermark("1") == Amount(share=1.0)
    assert memory_watermark("0") == Amount(share=0.0)
    assert disk_limit("1") == Amount(size_bytes=1)
    assert disk_limit("1.5") == Amount(share=1.5)
    assert disk_limit("mem_relative 2") == Amount(share=2.0)
    assert memory_watermark("relative 0.5") == Amount(share=0.5)
    assert str(memory_watermark("0.5")) == "0.5 of memory"


@pytest.mark.parametrize("written", ["1.1", "2", "relative 1.01", "1073741824", "512"])
def test_more_than_all_memory_is_no_share(written: str) -> None:
    """So bytes without a unit are not taken for a share that is never reached."""
    with pytest.raises(ValueError, match=r"more than all|no share"):
        memory_watermark(written)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("vm_memory_high_watermark = 0.4", "vm_memory_high_watermark", "0.4"),
        ("vm_memory_high_watermark = 1", "vm_memory_high_watermark", "1"),
        ('vm_memory_high_watermark = "512MB"', "vm_memory_high_watermark", "512MB"),
        ("vm_memory_high_watermark.relative = 0.4", "vm_memory_high_watermark", "relative 0.4"),
        ("vm_memory_high_watermark.absolute = 1024", "vm_memory_high_watermark", "absolute 1024"),
        ('vm_memory_high_watermark.absolute = "4Gi"', "vm_memory_high_watermark", "absolute 4Gi"),
        ("disk_free_limit = 50000000", "disk_free_limit", "50000000"),
        ("disk_free_limit.relative = 1.5", "disk_free_limit", "relative 1.5"),
        ('disk_free_limit.absolute = "2GB"', "disk_free_limit", "absolute 2GB"),
    ],
)
def test_the_file_may_spell_them_as_rabbitmq_does(line: str, name: str, value: str, tmp_path: Path) -> None:
    """`NAME.relative` and `NAME.absolute` are RabbitMQ's keys; TOML reads them as a table."""
    file = tmp_path / "broker.toml"
    file.write_text(line)
    assert getattr(Config.load(file=file), name) == value
