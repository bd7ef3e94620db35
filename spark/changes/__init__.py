"""Changes of rows, decoded from the physical WAL with a catalog beside it."""
