"""The kit for agents: declare agents and their skills, run them in workers."""
