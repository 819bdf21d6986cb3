"""Histories that clients and handlers write, and checkers that judge them together with the final state in Redis."""
