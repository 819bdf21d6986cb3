"""Stores large arguments and results outside Redis, in a folder or an S3-compatible store; Redis keeps references."""
