"""Reads a cut from the store: its pages, all its files, or a backup."""
