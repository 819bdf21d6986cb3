"""Talks to Redis: keys, connections, scripts. No other package does."""
