"""A proposer that lives with its server: what the server is, when to attach, when to end."""
