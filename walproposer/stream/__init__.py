"""The path of a commit: WAL from the primary to the safekeepers, the quorum's word back to it."""
