"""What proposer and safekeeper share: ballots, term history, quorum, messages. Pure; no I/O.

The law is `docs/protocol.md`.
"""
