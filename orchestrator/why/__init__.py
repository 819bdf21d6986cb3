"""Explains what a task waits for: reads the facts in one script call and names the first obstacle."""
