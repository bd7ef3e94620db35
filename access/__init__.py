"""Access to a listener of the Postgres protocol: users, roles, connection limits, TLS.

Each listener itself defines the role that a command needs.
"""
