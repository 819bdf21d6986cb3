"""Vectors of records: their encoding, and how each kind of search ranks them."""
