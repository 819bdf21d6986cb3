"""The worker process: host, worker, fetchers, executors, completer and heartbeat."""
