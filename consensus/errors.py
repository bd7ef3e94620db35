"""Errors of `consensus`.

ConsensusError          another process violated the laws or the wire format of the consensus
|-- MessageError        a message that cannot be decoded
`-- HistoryError        a term or timeline history that contradicts itself or its peer
"""

from __future__ import annotations


class ConsensusError(Exception):
    """Base class; `sqlstate` is for the answer of a server."""

    sqlstate = "XX000"


class MessageError(ConsensusError):
    """The bytes are not a message of this protocol (SQLSTATE protocol_violation)."""

    sqlstate = "08P01"


class HistoryError(ConsensusError):
    """A history is out of order, or two histories that must agree do not (data_corrupted)."""

    sqlstate = "XX001"
