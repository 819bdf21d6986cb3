"""Test kit without workers: temporary servers and pools, waits, assertions. `workers.testing` builds on it."""
