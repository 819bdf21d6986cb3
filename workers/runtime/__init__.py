"""What runs inside a worker process, and the host that forks it. Small parts, each one subject."""
