"""WAL from the safekeepers, cut after cut."""
