"""A proposer that supervises its server: the server's state, when to attach, when to end."""
