"""Measures throughput, latency and cost, each as a ratio to a raw loop of the same run."""
