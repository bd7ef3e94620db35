"""The coordinator: transactions that are prepared, wait for the quorum unseen, and are committed.

limbo            the core: verdicts for those who wait, and what the janitor does; pure
limbo_events     what goes into it and what it orders; pure
outcome_answer   what became of a transaction; pure

Law: docs/qsync.md. The truth about the limbo is Postgres' own table of prepared transactions, the
truth about the quorum is commit_lsn; nothing here is kept on a disk.
"""
