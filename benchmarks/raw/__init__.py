"""The raw loop: what redis-py and a stream give without any of our promises. Every figure is compared with it."""
