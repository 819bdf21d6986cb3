"""Agent state: fields that agents publish about themselves."""
