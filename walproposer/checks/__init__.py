"""Checks whether a primary can be attached and whether its commits are safe. They change
nothing."""
