"""Mutation testing: changes the product in one place at a time and finds the changes that no test notices."""
