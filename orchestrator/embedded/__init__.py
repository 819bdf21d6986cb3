"""Runs a redis-server for one data directory: finds it, starts it, shares it, stops it."""
