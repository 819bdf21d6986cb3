"""Starts, shares and stops the redis-server of a data directory."""
