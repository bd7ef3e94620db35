"""Surveys the WAL between two cuts and replays it into pages."""
