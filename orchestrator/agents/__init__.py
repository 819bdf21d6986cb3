"""Registers agents and workers: liveness, slots, limits."""
