"""Saves a pool to a file, and restores it into an empty one."""
