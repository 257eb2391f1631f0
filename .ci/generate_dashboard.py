"""Writes docs/grafana/flow.json: a Grafana board of credit, session windows and waits.

``python .ci/generate_dashboard.py`` writes it, with ``--check`` it exits with 1 if the file is another one.
The names of metrics are those of `amqp10broker/observe/metrics/table.py`; a test evaluates every query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

BOARD: Final = Path(__file__).parents[1] / "docs" / "grafana" / "flow.json"

_WIDTH: Final = 12
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_NODE: Final = (
    ' * on(instance, job) group_left(rabbitmq_node) rabbitmq_identity_info{rabbitmq_cluster="$cluster"}'
)

# Row: panels of title, what it tells, unit, and queries with their legends.
ROWS: Final = {
    "Credit": [
        (
            "Credit that clients have granted",
            "Sum over all links on which clients receive. At 0 with messages ready, clients do not ask.",
            "short",
            [('amqp10broker_link_credit{role="receiver"}' + _NODE, "{{rabbitmq_node}}")],
        ),
        (
            "Credit that clients may use",
            "Sum over all links on which clients send. At 0 the broker holds publishers back.",
            "short",
            [('amqp10broker_link_credit{role="sender"}' + _NODE, "{{rabbitmq_node}}")],
        ),
        (
            "Spells without credit, 99th percentile",
            "Of those that ended in the last minutes. role is the client's: receiver had granted none.",
            "s",
            [
                (
                    (
                        "histogram_quantile(0.99, sum by (role, le) "
                        "(rate(amqp10broker_link_credit_zero_seconds_bucket[$__rate_interval])))"
                    ),
                    "{{role}}",
                )
            ],
        ),
        (
            "Spells without credit that ended",
            "How many a second.",
            "ops",
            [
                (
                    "sum by (role) (rate(amqp10broker_link_credit_zero_seconds_count[$__rate_interval]))",
                    "{{role}}",
                )
            ],
        ),
        (
            "Credit asked of queues",
            "Requests a second: few and large is cheap, one a message is a client with a credit of 1.",
            "ops",
            [
                (
                    "sum by (protocol) (rate(amqp10broker_queue_credit_grants_total[$__rate_interval]))",
                    "{{protocol}}",
                )
            ],
        ),
        (
            "Deliveries that are not settled",
            "Of links, by the client's role.",
            "short",
            [("sum by (role) (amqp10broker_link_unsettled)", "{{role}}")],
        ),
    ],
    "Windows and sockets": [
        (
            "Session windows of clients",
            "Transfers that clients still take: at 0, sessions are not read.",
            "short",
            [("amqp10broker_session_remote_incoming_window" + _NODE, "{{rabbitmq_node}}")],
        ),
        (
            "Spells with a closed window, 99th percentile",
            "Of those that ended in the last minutes.",
            "s",
            [
                (
                    (
                        "histogram_quantile(0.99, sum by (le) "
                        "(rate(amqp10broker_session_remote_window_zero_seconds_bucket[$__rate_interval])))"
                    ),
                    "p99",
                )
            ],
        ),
        (
            "Messages in sessions that are not written",
            "They wait for credit, a window or the socket.",
            "short",
            [("amqp10broker_session_pending_out" + _NODE, "{{rabbitmq_node}}")],
        ),
        (
            "Sockets that take nothing",
            "Connections on whose sockets bytes wait, on average.",
            "short",
            [
                (
                    "rate(amqp10broker_writer_blocked_seconds_total[$__rate_interval])" + _NODE,
                    "{{rabbitmq_node}}",
                )
            ],
        ),
    ],
    "Waits": [
        (
            "Links that wait, by reason",
            "The reasons are explained in docs/waiting.md.",
            "short",
            [("sum by (reason) (amqp10broker_links_waiting) > 0", "{{reason}}")],
        ),
        (
            "The longest wait, by reason",
            "Of those that go on.",
            "s",
            [("max by (reason) (amqp10broker_link_wait_seconds) > 0", "{{reason}}")],
        ),
    ],
}


def board() -> dict[str, Any]:
    """The board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, asked in ROWS.items():
        panels.append({**_place(0, top, 24, 1), "id": len(panels) + 1, "type": "row", "title": row})
        top += 1
        for at, panel in enumerate(asked):
            x, y = at % 2 * _WIDTH, top + at // 2 * _HEIGHT
            panels.append({**_place(x, y, _WIDTH, _HEIGHT), "id": len(panels) + 1, **_panel(*panel)})
        top += (len(asked) + 1) // 2 * _HEIGHT
    return {
        "title": "amqp10broker: credit, windows, waits",
        "uid": "amqp10broker-flow",
        "tags": ["amqp10broker"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": [_choice_of_source(), _choice_of_cluster()]},
        "panels": panels,
    }


def text() -> str:
    """The file."""
    return json.dumps(board(), indent=2) + "\n"


def _place(x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(title: str, about: str, unit: str, asked: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(asked)
        ],
    }


def _choice_of_source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice_of_cluster() -> dict[str, Any]:
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(rabbitmq_identity_info, rabbitmq_cluster)",
        "refresh": 2,
    }


def main(arguments: list[str]) -> int:
    """Write the file, or check it."""
    if arguments == ["--check"]:
        same = BOARD.exists() and BOARD.read_text() == text()
        if not same:
            print(f"{BOARD.name} is not what .ci/generate_dashboard.py writes: run it")
        return 0 if same else 1
    BOARD.parent.mkdir(exist_ok=True)
    BOARD.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
