"""Synthetic recordings hold what was planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.observe.flow_events.schema import EventKind
from amqp10broker.observe.recording.parquet import read_events
from amqp10broker.observe.recording.runs import read_runs
from tests.support import synthetic


def test_a_seed_gives_the_same_events_again(tmp_path: Path) -> None:
    """Another seed gives others."""
    plants = synthetic.two_senders(repetitions=1, events=500)
    tables = []
    for number, seed in enumerate((7, 7, 8)):
        synthetic.write(tmp_path / str(number), plants, seed=seed)
        tables.append(read_events(tmp_path / str(number), plants[0].run.run_id))
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_a_sweep_has_about_as_many_events_as_asked_for_and_its_planted_rate(tmp_path: Path) -> None:
    """The messages of a run are its rate times its time, exactly."""
    plants = synthetic.sweep(credits=(50, 170), windows=(400,), repetitions=2, events=9_000)
    assert synthetic.write(tmp_path, plants) == pytest.approx(9_000, rel=0.02)
    assert {run.run_id for run in read_runs(tmp_path)} == {plant.run.run_id for plant in plants}
    for plant in plants:
        table = read_events(tmp_path, plant.run.run_id).to_pandas()
        received = table[table.kind == EventKind.CLIENT_RECEIVED]
        assert received.n.sum() == pytest.approx(plant.streams[0].rate_per_s * plant.seconds, abs=1)
        assert received.value_ns.sum() == pytest.approx(plant.seconds * 1e9, rel=1e-6)


def test_latencies_have_the_planted_quantiles(tmp_path: Path) -> None:
    """Lognormal, by its median and sigma."""
    (plant,) = synthetic.two_senders(repetitions=1, events=100_000)
    synthetic.write(tmp_path, [plant])
    table = read_events(tmp_path, plant.run.run_id).to_pandas()
    slow = table[(table.kind == EventKind.CLIENT_CONFIRM) & (table.channel == 1)].value_ns
    for share in (0.1, 0.5, 0.9):
        assert slow.quantile(share) / 1e6 == pytest.approx(
            plant.streams[1].confirm.quantile_ms(share), rel=0.05
        )
