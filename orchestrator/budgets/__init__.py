"""Budgets: what tasks may spend of money, tokens, calls and seconds."""
