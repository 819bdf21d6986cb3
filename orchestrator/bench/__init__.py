"""Measures this machine and a server with tasks that do nothing, for `orc bench`."""
