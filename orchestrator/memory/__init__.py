"""Memory of agents: records in tiers."""
