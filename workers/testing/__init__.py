"""Tests of agents: run one skill without a server, or a whole team on a real Redis."""
