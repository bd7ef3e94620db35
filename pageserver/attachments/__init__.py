"""Decides which pageserver owns a timeline and which objects it may delete: cores and shells."""
