"""A broker for the tests of a program: the pytest plugin, and `running` for every other framework.

The broker is imported when one is started, so that a run of pytest without such a test has no cost. The
users' documentation is `docs/testing.md`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp10broker.testing.servers import RunningBroker

__all__ = ["running"]


def running(**settings: Any) -> AbstractContextManager[RunningBroker]:
    """Run a broker in a thread of this process, at free ports, for the duration of a block.

    Args:
        settings: settings of the broker by name, as in its configuration: ``max_link_credit=10``. Without
            ``data_dir`` everything is in memory.

    Yields:
        The broker, with `url` and `http_url` for clients, and the calls and assertions of `docs/testing.md`.
        Its virtual host is ``/``, its user guest with the password guest.

    Raises:
        ConfigError: a setting is unknown or has an invalid value; the text contains the valid ones.
    """
    from amqp10broker.testing.servers import run_alone

    return run_alone(settings)
