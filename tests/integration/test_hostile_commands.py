"""Commands that our tools never send: each is refused with its name, and changes nothing."""

from __future__ import annotations

import secrets
from contextlib import closing

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import command

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pgclient.errors import ServerError
from quorum_wal.pgclient.questions import ask
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

SEG_SIZE = 1 << 20
START_LSN = 0x1100000
ENCODED = encode_membership(by_hand.first_membership(1, 2, 3))
LAWFUL = {
    "tenant_id": "00" * 16, "system_id": "7", "pg_version": "150018",
    "wal_seg_size": str(SEG_SIZE), "start_lsn": str(Lsn(START_LSN)), "tli": "1",
    "membership": ENCODED.hex(),
}  # fmt: skip

BAD_OPTIONS: dict[str, tuple[str, str]] = {
    "no tenant": ("tenant_id", ""),
    "a short timeline": ("timeline_id", "11"),
    "a timeline of other signs": ("timeline_id", "gg" * 16),
    "a system id beyond 64 bits": ("system_id", str(1 << 64)),
    "a system id of 5000 digits": ("system_id", "9" * 5000),
    "a version that does not exist": ("pg_version", "90624"),
    "a version beyond 32 bits": ("pg_version", str(1 << 32)),
    "a segment size that is no power of two": ("wal_seg_size", "1000000"),
    "a segment size of zero": ("wal_seg_size", "0"),
    "a start inside a segment": ("start_lsn", "0/1100008"),
    "a start at zero": ("start_lsn", "0/0"),
    "a start that is no LSN": ("start_lsn", "somewhere"),
    "a start beyond 64 bits": ("start_lsn", "FFFFFFFFF/0"),
    "a Postgres timeline of zero": ("tli", "0"),
    "a Postgres timeline beyond 32 bits": ("tli", str(1 << 32)),
    "a history that is none": ("tli_history", "once upon a time"),
    "a history of the future": ("tli_history", "9\t0/3000000\t"),
    "a membership that is not hex": ("membership", "a,b"),
    "a membership that ends early": ("membership", ENCODED[:-1].hex()),
    "a membership and more": ("membership", ENCODED.hex() + "00"),
    "members without this one": (
        "membership", encode_membership(by_hand.first_membership(2, 3)).hex()
    ),
    "a member twice": ("membership", ENCODED.replace(bytes([2]), bytes([1])).hex()),
    "a membership of another disk": ("membership", encode_membership(Membership(
        Stamp.FIRST, (1, 2, 3), (), (Member(1, b"another!"),)
    )).hex()),
    "a membership that was written later": ("membership", encode_membership(Membership(
        Stamp(NodeId(1, b"written by hand!"), 2), (1, 2, 3)
    )).hex()),
    "too many members": (
        "membership", ENCODED.replace(bytes([3]), bytes([11]), 1).hex() + "00" * 64
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_a_creation_with_a_bad_option_is_refused(cluster: QuorumCluster, what: str) -> None:
    name, value = BAD_OPTIONS[what]
    safekeeper = cluster.safekeepers[0]
    before = [timeline["timeline_id"] for timeline in safekeeper.status()["timelines"]]
    options = {**LAWFUL, "timeline_id": secrets.token_hex(16), name: value}
    with pytest.raises(WalProposerError) as refusal:
        command(safekeeper.address, "CREATE_TIMELINE", **options)
    assert refusal.value.sqlstate not in ("", "XX000"), refusal.value
    after = [timeline["timeline_id"] for timeline in safekeeper.status()["timelines"]]
    assert after == before


def test_the_error_names_the_bad_option(cluster: QuorumCluster) -> None:
    """Foreign commands, syntax errors, and a missing option."""
    address = SafekeeperAddress.parse(cluster.safekeepers[0].address)
    for text, sqlstate, sentence in (
        ("SELECT 2", "42601", 'syntax error at or near "SELECT"'),
        ("CREATE_TIMELINE (members", "42601", "syntax error at end of input"),
        ("TIMELINE_STATUS", "22023", 'option "tenant_id" is missing'),
    ):
        with closing(address.connect()) as connection:
            with pytest.raises(ServerError) as refusal:
                ask(connection.pgconn, text)
            assert (refusal.value.sqlstate, sentence in str(refusal.value)) == (sqlstate, True)
            ask(connection.pgconn, "IDENTIFY_SAFEKEEPER")  # the connection is still usable
