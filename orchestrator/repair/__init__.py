"""Finds damage in a pool, from lost writes or crashed programs, and repairs it from the records of the tasks."""
