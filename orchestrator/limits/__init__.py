"""Rate limits by name, in sliding windows."""
