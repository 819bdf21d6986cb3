"""Peers that can be measured in the same run, each in an environment of its own."""
