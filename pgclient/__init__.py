"""The client of Postgres' replication protocol, on libpq: for primaries, standbys and safekeepers.

connection    opening a connection; what a safekeeper may ask for
required_auth which proof of a password our own clients let a safekeeper ask for
questions     IDENTIFY_SYSTEM, TIMELINE_HISTORY, SHOW, any command with rows: answers, parsed
results       libpq's results and CopyData, waited for
stream        WAL from a position on, for those who may block
errors        what can go wrong; a server's own words come with their SQLSTATE

Laws. Whatever a server sends, these modules raise nothing but `PgClientError`; each package makes
that an error of its own, in one place. A thread that waits for a server does not keep the
interpreter from the others. No password becomes part of a message.
"""
