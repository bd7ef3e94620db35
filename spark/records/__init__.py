"""Makes Arrow columns from arrays of records; does not know files."""
