"""The raw loop: redis-py and a stream, without any guarantee. Every figure is compared with it."""
