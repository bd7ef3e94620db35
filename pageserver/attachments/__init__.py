"""Whose a timeline is, and what goes when: cores, and the shells that run them."""
