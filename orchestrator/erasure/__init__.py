"""Removes everything about a person from shared state."""
