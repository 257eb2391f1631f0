"""Arguments in the examples of commands that are not in the registry of operations; a test parses each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, str]] = {
    "": "amqp10broker serve --data-dir data",
    "serve": "--data-dir data --host 0.0.0.0 --log-format json",
    "run-cluster": "--nodes 5 --first-port 6672",
    "status": "--queue 'orders*' --longer 60",
    "timeline": "7 orders --for 30 > orders.json",
    "upgrade-check": "--to 4.3",
    "ping": "--queue --timeout 2",
    "frames trace": "/queues/orders on",
    "frames lint": "3 --for 30",
    "frames print": "frames.jsonl --connection 3",
    "frames replay": "frames.jsonl --url amqp://guest:guest@localhost --fast",
    "frames what-if": "frames.jsonl --max-link-credit 1000 --round-trip-ms 20",
    "connection list": "id user peer state",
    "session list": "",
    "link list": "connection name role credit waits",
    "transaction list": "",
    "channel list": "",
    "consumer list": "",
    "alarm memory-limit": "absolute 2GiB",
    "alarm disk-limit": "5GB",
    "publish": "--queue orders --property message-id=7 'a message'",
    "get": "orders --count 10 --format json",
    "cluster new-secret": "secret",
    "cluster force-standalone": "data",
    "user explain-token": "--config broker.toml < token",
    "storage check": "data",
    "storage accept": "data",
    "record analyse": "recording --aim latency --rate 1000",
    "completion": 'eval "$(amqp10broker completion bash)"',
}
