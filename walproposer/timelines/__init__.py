"""Timelines on a set of safekeepers: found, shown, created, deleted."""
