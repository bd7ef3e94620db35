"""Who may connect to a listener of the Postgres protocol, and what for: users, roles, places, TLS.

What a command needs is said by each listener itself.
"""
