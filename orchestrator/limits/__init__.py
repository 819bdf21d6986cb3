"""Sliding windows for whatever is to happen only so often: calls of an API, messages, hooks."""
