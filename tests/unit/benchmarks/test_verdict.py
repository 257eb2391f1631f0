"""The verdict on a recommendation, with planted rates and planted noise."""

from __future__ import annotations

import random

import pytest

from benchmarks.verdict import Finding, judge


def repetitions(mean: float, noise: float, chance: random.Random, drift: list[float]) -> list[float]:
    """Return rates that scatter around a mean by a share of it, on a machine that drifts."""
    return [mean * slow * (1 + chance.gauss(0, noise)) for slow in drift]


def planted(
    recommended: float, rivals: list[float], noise: float, *, count: int = 10, seed: int = 1
) -> Finding:
    """Return the finding for settings with these true rates."""
    chance = random.Random(seed)
    drift = [1 + 0.3 * chance.random() for _ in range(count)]
    measured = {f"rival {mean:g}": repetitions(mean, noise, chance, drift) for mean in rivals}
    return judge(repetitions(recommended, noise, chance, drift), measured).finding


@pytest.mark.parametrize(
    ("recommended", "rivals", "noise", "finding"),
    [
        (100.0, [90.0, 100.0, 70.0], 0.01, Finding.WITHIN),
        (98.0, [100.0, 99.0], 0.005, Finding.WITHIN),
        (80.0, [100.0, 60.0], 0.02, Finding.NOT_WITHIN),
        (100.0, [50.0, 112.0, 70.0], 0.01, Finding.NOT_WITHIN),
        (98.0, [100.0, 99.0], 0.2, Finding.HIDDEN),
        (95.0, [100.0], 0.03, Finding.HIDDEN),
        (100.0, [100.0, 100.0, 100.0], 0.5, Finding.HIDDEN),
    ],
)
def test_each_finding_is_reached(
    recommended: float, rivals: list[float], noise: float, finding: Finding
) -> None:
    """Clear rates are judged as they are, and what the noise hides is said to be hidden."""
    assert planted(recommended, rivals, noise) is finding


def test_a_wrong_recommendation_is_called_wrong_and_never_good() -> None:
    """Settings that reach 85 % of the best, with noise of 3 %: hundreds of machines, none is fooled."""
    findings = [planted(85.0, [100.0, 97.0, 80.0], 0.03, seed=seed) for seed in range(300)]
    assert Finding.WITHIN not in findings
    assert findings.count(Finding.NOT_WITHIN) > 0.95 * len(findings)


def test_at_the_bound_a_false_verdict_is_as_rare_as_the_confidence_says() -> None:
    """The true ratio is 0.95: one-sided, each of both findings is right or wrong by chance alone."""
    findings = [planted(95.0, [100.0, 100.0, 100.0], 0.02, seed=seed) for seed in range(400)]
    decided = [finding for finding in findings if finding is Finding.WITHIN]
    assert len(decided) < 0.05 * len(findings)
    assert findings.count(Finding.NOT_WITHIN) < 0.1 * len(findings)


def test_drift_of_the_machine_falls_out() -> None:
    """Rates that fall by half over the repetitions hide nothing, as long as both fall."""
    fall = [1 - 0.05 * step for step in range(10)]
    verdict = judge([98.0 * slow for slow in fall], {"best": [100.0 * slow for slow in fall]})
    assert verdict.finding is Finding.WITHIN
    assert verdict.ratio == pytest.approx(0.98)
    assert verdict.low == pytest.approx(0.98)


def test_the_best_of_many_equals_does_not_condemn() -> None:
    """Eight rivals as good as the recommended: the luckiest of them is not taken for the best."""
    findings = [planted(100.0, [100.0] * 8, 0.05, seed=seed) for seed in range(200)]
    assert findings.count(Finding.NOT_WITHIN) <= 0.05 * len(findings)


def test_intervals_are_wider_the_more_rivals_there_are() -> None:
    """All of them must hold together: each alone leaves out less."""
    rates, rival = [98.0, 100.0, 102.0, 99.0], [101.0, 100.0, 99.0, 103.0]
    alone = judge(rates, {"one": rival}).ratios[0]
    among = judge(rates, {"one": rival, "two": [50.0] * 4, "three": [40.0] * 4}).ratios[0]
    assert alone.ratio == among.ratio
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low < alone.ratio


def test_latencies_are_better_when_they_are_lower() -> None:
    """A p99 of 2 ms beside one of 1 ms is half as good; beside one of 4 ms it is the best."""
    worse = judge([2.0, 2.0, 2.02], {"rival": [1.0, 1.0, 1.0]}, highest=False)
    assert worse.finding is Finding.NOT_WITHIN
    assert worse.ratio == pytest.approx(0.5, rel=0.01)
    assert judge([2.0, 2.0, 2.02], {"rival": [4.0, 4.0, 4.0]}, highest=False).finding is Finding.WITHIN


def test_one_repetition_decides_nothing() -> None:
    """It has no spread, however clear it looks."""
    verdict = judge([100.0], {"rival": [10.0]})
    assert (verdict.finding, verdict.low, verdict.high) == (Finding.HIDDEN, None, None)
    assert "no interval" in verdict.describe()


def test_nobody_is_better_than_the_best() -> None:
    """What was recommended is one of those that may be the best: the ratio ends at 1."""
    verdict = judge([100.0, 101.0, 102.0], {"rival": [50.0, 51.0, 52.0]})
    assert (verdict.ratio, verdict.high) == (1.0, 1.0)
    assert verdict.ratios[0].ratio > 1.9


@pytest.mark.parametrize(
    ("recommended", "rivals"),
    [([1.0], {}), ([], {"rival": []}), ([1.0, 2.0], {"rival": [1.0]}), ([1.0, 0.0], {"rival": [1.0, 1.0]})],
)
def test_what_cannot_be_compared_is_refused(recommended: list[float], rivals: dict[str, list[float]]) -> None:
    """Without rivals, with unequal repetitions, or with a rate of 0 there is no ratio."""
    with pytest.raises(ValueError, match=r"needs|beside|above 0"):
        judge(recommended, rivals)


def test_each_finding_has_an_exit_status_of_its_own() -> None:
    """A script can tell them apart from each other and from failures."""
    assert [finding.status for finding in Finding] == [0, 3, 4]
    assert Finding.NOT_WITHIN.describe(0.05) == "not within 5% of the best"
