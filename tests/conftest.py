"""For all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Tests never time: how long an example takes says how busy the machine is.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
