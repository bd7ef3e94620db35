"""The inputs that WAL is read from, and the reader that makes batches of it."""
