"""The client of Postgres' replication protocol, on libpq: for primaries, standbys and safekeepers.

connection    opens connections
required_auth the authentication methods that our own clients accept from a safekeeper
questions     IDENTIFY_SYSTEM, TIMELINE_HISTORY, SHOW, any command with rows; parses the answers
results       waits for libpq's results and CopyData
stream        streams WAL from a position on, for callers that may block
errors        the errors; a server's own message comes with its SQLSTATE

Laws. These modules raise only `PgClientError`, whatever a server sends. Each package converts it to
an error of its own, in one place. A thread that waits for a server does not hold the interpreter
lock. No message contains a password.
"""
