"""Reads what operators see as typed values: no formatting, no printing. The command line formats them."""
