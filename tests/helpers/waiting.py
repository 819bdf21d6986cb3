"""The described waits of the test kit, under the name that tests import."""

from orchestrator.testing.waiting import wait_for, wait_until

__all__ = ["wait_for", "wait_until"]
