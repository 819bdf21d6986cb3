"""Reads options and input from the command line, and writes output to the terminal."""
