"""The client: submit tasks, wait for their results."""
