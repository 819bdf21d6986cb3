"""Who has done how much on a day: the board of the pool's agents, and boards of one's own."""
