"""Changes of rows, decoded from the physical WAL with the help of a catalog."""
