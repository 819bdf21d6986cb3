"""Who can work: registration, liveness, limits of agents and workers."""
