"""The path of a commit: WAL from the primary to the safekeepers, and their confirmations back to
it."""
