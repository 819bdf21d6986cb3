"""Injects faults between a client and Redis, and checks the histories of faulty runs."""
