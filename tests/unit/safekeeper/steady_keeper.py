"""The state and answers of a timeline, to compare the steady path with the general one."""

from __future__ import annotations

from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import structs

from quorum_wal.consensus.codec import decode_proposer_message, encode
from quorum_wal.consensus.messages import Append
from quorum_wal.safekeeper.timeline import Timeline


def changed(payload: bytes, **deltas: int) -> bytes:
    """An Append with other positions."""
    message = decode_proposer_message(payload)
    assert isinstance(message, Append)
    fields = {name: max(0, getattr(message, name) + delta) for name, delta in deltas.items()}
    return encode(structs.replace(message, **fields))


def ballot(payload: bytes, term: int) -> bytes:
    """A message of another ballot."""
    return payload[:5] + term.to_bytes(8, "big") + payload[13:]


def state_of(timeline: Timeline) -> dict[str, Any]:
    """Of the acceptor after it has received the steady path's result."""
    acceptor = timeline._acceptor
    fields = dict(vars(acceptor)) if acceptor is not None else {}
    if acceptor is not None and acceptor._ends is not None:
        fields["_ends"] = deepcopy(vars(acceptor._ends))
    end_lsn = timeline.store.end_lsn
    steady = timeline._steady
    if steady is not None:
        names = ("written_lsn", "flush_lsn", "record_end_lsn", "commit_lsn")
        names += ("sent_commit_lsn", "truncate_lsn")
        fields.update({name: getattr(steady, name) for name in names})
        fields["durable_lsn"] = end_lsn = steady.written_lsn
        fields["_has_append"] = fields["_has_append"] or steady.has_taken
    return {
        **fields,
        "positions": timeline.positions,
        "state": timeline.state,
        "end_lsn": end_lsn,
    }


def files_of(timeline: Timeline, folder: Path) -> dict[str, str]:
    """The checksum of each file: pytest would print megabytes for minutes."""
    timeline.close("the test goes on")
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
