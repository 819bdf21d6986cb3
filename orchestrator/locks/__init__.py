"""Locks with fences: named ones for work outside of Redis, and the execution locks of attempts."""
