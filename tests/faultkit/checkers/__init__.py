"""Histories of clients and handlers, and checkers that compare them with the final state in Redis."""
