"""Finds what Redis lost or what crashed programs left behind, and puts it right from the records of the tasks."""
