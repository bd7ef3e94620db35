"""Where WAL is read from, and how a range of it becomes batches."""
