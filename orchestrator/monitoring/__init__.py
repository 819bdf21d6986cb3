"""Serves the health and the metrics of a process over HTTP. Nothing listens unless an address is set."""
