"""Write the page of all metrics, build/docs/metrics.md, from the table that a scrape is made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from amqp10broker.observe.metrics import (
    ALWAYS,
    GROUPS,
    MEMORY,
    NODE_ONLY,
    QUEUE_COARSE,
    QUEUE_INFO,
    Family,
    Group,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build" / "docs" / "metrics.md"


def rows(families: Iterable[Family], labels: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of one table; `labels` are those of the group of the families."""
    yield from ("| metric | kind | labels | contents |", "|---|---|---|---|")
    for family in families:
        named = ", ".join(f"`{label}`" for label in (*labels, *family.labels))
        yield f"| `{family.name}` | {family.kind.value} | {named} | {family.help} |"


def paths(group: Group) -> str:
    """Return the paths whose answers contain the group."""
    found = ["/metrics"] if group.summed else []
    found += ["/metrics/per-object"] if group.per_object else []
    return ", ".join(f"`{path}`" for path in (*found, "/metrics/detailed"))


def render() -> str:
    """Return the page."""
    lines = ["# All metrics", "", "## In every scrape", "", *rows(ALWAYS)]
    lines += ["", "## Of the node, in `/metrics` and `/metrics/per-object`", "", *rows(NODE_ONLY)]
    lines += ["", "## Of objects", "", "`/metrics` has sums without the labels of the objects."]
    for group in GROUPS.values():
        lines += ["", f"Family `{group.name}`, in {paths(group)}:", ""]
        lines += rows(group.families, group.labels)
    lines += ["", "With the families of queues, `/metrics/detailed` also has:", ""]
    lines += rows([QUEUE_INFO], QUEUE_COARSE.labels)
    lines += ["", "`/metrics/memory-breakdown` also has:", "", *rows([MEMORY])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
