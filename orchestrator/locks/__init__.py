"""Locks with fences: named locks, and the execution locks of attempts."""
