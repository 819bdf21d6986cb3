"""Daily boards: counts per member and day, for the agents of a pool and for users' own boards."""
