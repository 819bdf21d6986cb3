"""Embedders: turn texts into vectors, for recall by meaning."""
