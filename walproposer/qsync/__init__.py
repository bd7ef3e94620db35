"""The coordinator: a prepared transaction waits, not visible, for the quorum, and is then
committed.

limbo            the core: verdicts for waiting clients, and orders of the janitor; pure
limbo_events     the events and actions of the core; pure
outcome_answer   the outcome of a transaction; pure

Law: docs/qsync.md. Postgres' own table of prepared transactions defines the limbo, and commit_lsn
defines what the quorum has. Nothing here is stored on disk.
"""
