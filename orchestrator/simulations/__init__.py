"""Simulations: which agents took part, which states they stored, and data that they buffer for each other."""
