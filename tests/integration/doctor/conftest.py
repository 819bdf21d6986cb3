"""Fixtures of the doctor's tests: those of the integration tests, which lie one folder up."""

from __future__ import annotations

from tests.integration.conftest import settings, team

__all__ = ["settings", "team"]
