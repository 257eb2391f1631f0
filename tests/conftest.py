"""For all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Tests never time: how long an example takes says how busy the machine is.
# Where a change is judged (.ci/run sets CI) it is judged by the same examples each time, so that a failure is
# the change's own; wherever else the tests run they look at new examples.
settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("tests")
