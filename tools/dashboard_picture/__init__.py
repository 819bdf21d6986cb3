"""Draws the Grafana dashboard with the numbers of a real run, for the manual."""
