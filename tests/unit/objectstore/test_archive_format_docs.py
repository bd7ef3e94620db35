"""`docs/archive-format.md` agrees with the code: its keys, its JSON, its bytes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline
from quorum_wal.objectstore.keys import ArchivedWal, ArchiveKeys
from quorum_wal.objectstore.sealed import SEAL, SKIPPABLE_MAGIC, VERSION, seal, unseal

PAGE = (Path(__file__).parents[3] / "docs" / "archive-format.md").read_text()
MIB = 1 << 20
KEYS = ArchiveKeys(TimelineId(bytes(16), bytes(16)), 16 * MIB)

CONTENTS = (b"quorum\n" * 3, bytes(64))


def dumps() -> list[bytes]:
    """The hex dumps of the page."""
    found = re.findall(r"(?:^    [0-9a-f]{8}  .*\n)+", PAGE, re.MULTILINE)
    return [bytes.fromhex(re.sub(r"(?m)^    [0-9a-f]{8}  ", "", dump)) for dump in found]


@pytest.mark.parametrize(("number", "content"), [*enumerate(CONTENTS)])
def test_the_bytes(number: int, content: bytes) -> None:
    dump = dumps()[number]
    assert unseal(dump, "the page") == content
    is_raw = number == 0
    if is_raw:
        assert seal(content, None) == dump
    # The compressed bytes depend on the library; the seal is ours.
    assert seal(content, None if is_raw else 1)[-SEAL.size :] == dump[-SEAL.size :]


def test_all_dumps_are_checked() -> None:
    assert len(dumps()) == len(CONTENTS)


def test_the_seal() -> None:
    assert f"`magic` is {SKIPPABLE_MAGIC:#010X}".replace("0X", "0x") in PAGE
    assert f"Format {VERSION}." in PAGE
    assert f"a seal of {SEAL.size} bytes" in PAGE


def test_the_keys() -> None:
    named = [
        KEYS.key(ArchivedWal(1, 5, 0x6000000)),
        KEYS.key(ArchivedWal(1, 6, 0x612AB40)),
        KEYS.key(ArchivedWal(2, 256, 0x101000000)),
        KEYS.history(2),
    ]
    keys = re.findall(r"^\| .* \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert keys == [name.removeprefix(KEYS.prefix) for name in named]
    for key in keys[:3]:
        assert KEYS.parse_wal(KEYS.prefix + key) is not None


def test_the_timeline() -> None:
    (line,) = re.findall(r"^    (\{.*\})$", PAGE, re.MULTILINE)
    facts = msgspec.json.decode(line, type=ArchivedTimeline)
    assert facts.timeline_start_lsn == 0x5000000
    assert msgspec.json.encode(facts).decode() == line
