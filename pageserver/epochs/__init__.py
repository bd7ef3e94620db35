"""The WAL between two cuts, surveyed and replayed into pages."""
