"""Compares the pages of a server with the pages built from its WAL."""
