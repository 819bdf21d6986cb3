"""The supervisor: independent loops that `daemon` starts."""
