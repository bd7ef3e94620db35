"""Makes bytes durable on a local disk. Below all other packages: it knows nothing of WAL."""
