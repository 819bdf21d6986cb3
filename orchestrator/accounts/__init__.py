"""Stores users with passwords, tokens and one-time links of the dashboard and its API."""
