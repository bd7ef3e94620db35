"""Copies of a proposer's core, deep where it can change and shallow where it cannot; and its key,
which is equal for cores that will behave equally.

They are used without a member change: its state is not copied.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.peer_set import PeerSet
from quorum_wal.walproposer.stream.progress import Progress
from quorum_wal.walproposer.stream.proposer import Proposer

PROGRESS_FIELDS = [f.name for f in fields(Progress)]

T = TypeVar("T")


def copied_proposer(core: Proposer) -> Proposer:
    other = shallow(core)
    peer_set = other.peer_set = shallow(core.peer_set)
    peer_set.places = other.peers = [copied_progress(progress) for progress in core.peers]
    other.candidate = shallow(core.candidate)
    other.candidate._peer_set = peer_set
    if core._check is not None:
        other._check = shallow(core._check)
        other._check._primary_wal = bytearray(core._check._primary_wal)
    if core.leader is not None:
        other.leader = copied_leader(core.leader, peer_set)
    return other


def copied_leader(leader: Leader, peer_set: PeerSet) -> Leader:
    assert leader.members.change is None
    other = shallow(leader)
    other.peer_set, other.peers = peer_set, peer_set.places
    other.boundary = shallow(leader.boundary)
    other.window = shallow(leader.window)
    other.window._chunks = list(leader.window._chunks)
    other.window._begins = list(leader.window._begins)
    return other


def copied_progress(progress: Progress) -> Progress:
    other = Progress(progress.peer)
    for name in PROGRESS_FIELDS:
        setattr(other, name, getattr(progress, name))
    if other.catch_up is not None:
        other.catch_up = shallow(other.catch_up)
    return other


def shallow(value: T) -> T:
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__)
    return other


def proposer_key(core: Proposer) -> tuple[Any, ...]:
    peers = tuple(
        (p.state, p.vote, p.answered, p.next_lsn, p.durable_lsn, p.flush_lsn, p.commit_lsn,
         p.record_end_lsn, p.sent_commit_lsn, p.promised, p.donor, p.catch_up is None,
         p.safekeeper_id, p.is_member, p.generation, p.asked)
        for p in core.peers
    )  # fmt: skip
    leader, membership = core.leader, core.membership
    stamp = membership.stamp if membership is not None else None
    if leader is None:
        return (core.state, core.node_id, stamp, peers)
    window = leader.window
    leading = leader.commit_lsn, leader.truncate_lsn, window.begin_lsn, window.end_lsn
    return (core.state, core.node_id, stamp, peers, leader.term.term_start_lsn, leading)
