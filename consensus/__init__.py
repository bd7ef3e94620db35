"""What proposer and safekeeper both speak: ballots, term history, quorum, messages. Pure; no I/O.

The law is `docs/protocol.md`.
"""
