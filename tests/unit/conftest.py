"""Settings of the property tests that need no server."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A deadline, and the check for slow generation, measure how busy the machine is.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
