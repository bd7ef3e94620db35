"""Receives WAL from the safekeepers and makes cuts from it."""
