"""Recommendations as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.tools.analysis.recommend import NoRecommendation, Recommendation, undecided, written


def all_told(found: Sequence[Recommendation | NoRecommendation]) -> str:
    """Return all recommendations as text; groups without one for the same reason are joined."""
    texts = [told(one) for one in found if isinstance(one, Recommendation)]
    for reason, groups in undecided(found).items():
        texts.append("\n    ".join([f"no recommendation: {reason}:", *groups]))
    return "".join(f"{text}\n\n" for text in texts).rstrip("\n") + "\n"


def told(one: Recommendation | NoRecommendation) -> str:
    """Return one recommendation as text: settings, reason, certainty, and options to paste."""
    head = f"{one.group}\n  for the {one.aim}:"
    if isinstance(one, NoRecommendation):
        return f"{head} no recommendation: {one.reason}"
    known = one.chosen_figure
    half = known.half_width
    spread = "one repetition" if half is None else f"± {written(half)}, {known.repetitions} repetitions"
    lines = [f"{head} {one.figure} {written(known.mean)} {one.unit} ({spread})", f"    {one.command_line}"]
    if one.unproven:
        lines.append(f"    not proven: {one.unproven}; leave the settings as they are, or measure again")
    lines += [f"    because {reason}" for reason in one.reasons]
    lines += [f"    but {weak}" for weak in one.weak]
    lines += [f"    mind: {note}" for note in one.notes]
    return "\n".join(lines)
