"""Finds, shows, creates and deletes timelines on a set of safekeepers."""
