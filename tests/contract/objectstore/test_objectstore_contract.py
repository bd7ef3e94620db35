"""The contract of every object store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from s3_server import PAGE_KEYS

from quorum_wal.objectstore.delete_requests import DELETE_KEYS_MAX, delete_requests
from quorum_wal.objectstore.errors import ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.store import PIECE_BYTES, ObjectStore
from quorum_wal.storage.errors import StorageError

READS = 40
CLOCK_TOLERANCE = timedelta(seconds=5)  # a store may have a resolution of whole seconds
WAL = "00/11/wal/00000001/0000000100000000000000"
KEYS = [
    "00/11/backups/20261121T101500Z-0000000005000028/backup.json",
    "00/11/history/00000002.history",
    "00/11/timeline.json",
    f"{WAL}05",
    f"{WAL}06",
    f"{WAL}06.partial/0000000006100000",
    f"{WAL}06.partial/0000000006200000",
    f"{WAL}07",
    "00/22/timeline.json",
]


#: all kinds of stores, for what depends on the prefix of the keys
ALL_KINDS = pytest.mark.parametrize("store", ["local", "memory", "s3", "s3-prefix"], indirect=True)


@pytest.fixture
def filled(store: ObjectStore) -> ObjectStore:
    for key in reversed(KEYS):
        store.put(key, key.encode())
    return store


def keys_of(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, after)]


# ---- one object


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000], ids=["empty", "x", "all"])
def test_an_object_is_read_as_written(store: ObjectStore, data: bytes) -> None:
    store.put("a/b", data)
    assert store.get("a/b") == data
    store.put("a/b", b"other")
    assert store.get("a/b") == b"other"


def test_a_large_one(store: ObjectStore) -> None:
    data = bytes(range(251)) * (1 << 16)  # 16 MB, in one request
    assert store.create("a/large", data)
    assert store.get("a/large") == data
    (info,) = store.list("a/")
    assert info.size_bytes == len(data)


@pytest.mark.parametrize("method", ["put", "create"])
@pytest.mark.parametrize(
    "pieces",
    [[], [b""], [b"one"], [b"one", b"", memoryview(b"two")], [bytes(range(256)) * 500] * 100],
    ids=["none", "empty", "one", "three", "many"],
)
def test_pieces(store: ObjectStore, method: str, pieces: list[bytes]) -> None:
    """Written and read; 12 MB are more than one piece."""
    getattr(store, method)("a/b", pieces)
    whole = b"".join(pieces)
    assert store.get("a/b") == whole
    found = list(store.get_pieces("a/b"))
    assert b"".join(found) == whole
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)
    assert store.create("a/b", [b"other"]) is False
    assert store.get("a/b") == whole


@pytest.mark.parametrize("method", ["put", "create"])
def test_pieces_that_cannot_be_made(store: ObjectStore, method: str) -> None:
    """The error is raised, and there is no object."""

    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise StorageError('could not read "wal": Input/output error')

    with pytest.raises(StorageError, match="could not read"):
        getattr(store, method)("a/b", pieces())
    assert keys_of(store) == []


def test_pieces_of_one_object_alone(store: ObjectStore) -> None:
    """An object that is replaced while it is read gives its old content to the end, or an error."""
    old, new = (bytes([number]) * (12 << 20) for number in (1, 2))
    store.put("a/b", old)
    pieces = store.get_pieces("a/b")
    found = [next(pieces)]
    store.put("a/b", new)
    with suppress(ObjectStoreError):
        found += pieces
        assert b"".join(found) == old
    assert set(b"".join(found)) == {1}


@ALL_KINDS
def test_an_existing_object_is_not_created(store: ObjectStore) -> None:
    assert store.create("a/b", b"first") is True
    assert store.create("a/b", b"second") is False
    assert store.create("a/b", b"first") is False
    assert store.get("a/b") == b"first"
    store.delete("a/b")
    assert store.create("a/b", b"third") is True


@pytest.mark.parametrize("length", [1, 99, 100, 101, 10_000])
def test_tails(store: ObjectStore, length: int) -> None:
    """All of an object that is shorter; also of an empty one, which has no bytes."""
    data = bytes(range(100))
    store.put("a/b", data)
    store.put("a/empty", b"")
    assert store.get_tail("a/b", length) == data[-length:]
    assert store.get_tail("a/empty", length) == b""


@pytest.mark.parametrize(
    ("begin", "length"),
    [(0, 1), (0, 100), (37, 20), (90, 100), (99, 1), (100, 1), (500, 9), (3, 0)],
)
def test_ranges(store: ObjectStore, begin: int, length: int) -> None:
    """Up to the end of the object."""
    data = bytes(range(100))
    store.put("a/b", data)
    store.put("a/empty", b"")
    assert store.get_range("a/b", begin, length) == data[begin : begin + length]
    assert store.get_range("a/empty", begin, length) == b""


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get_range("a/none", 0, 10),
        lambda store: store.get_range("a/none", 5, 0),
        lambda store: store.get("a/none"),
        lambda store: next(store.get_pieces("a/none")),
        lambda store: store.get_tail("a/none", 32),
    ],
    ids=["get_range", "get_range of nothing", "get", "get_pieces", "get_tail"],
)
def test_a_missing_object(store: ObjectStore, read: Callable[[ObjectStore], bytes]) -> None:
    store.put("a/other", b"")
    with pytest.raises(ObjectNotFound, match='"a/none" does not exist') as error:
        read(store)
    assert not error.value.is_transient
    assert "\n" not in str(error.value)


def test_deleting(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.put("a/c", b"y")
    store.delete("a/b")
    store.delete("a/b")  # already deleted
    store.delete("a/none/either")
    assert keys_of(store) == ["a/c"]
    with pytest.raises(ObjectNotFound):
        store.get("a/b")


@ALL_KINDS
def test_many_objects_are_deleted(store: ObjectStore) -> None:
    """More than fit into one request, some of which do not exist; no other object is deleted."""
    keys = [f"many/{number:05d}" for number in range(2 * DELETE_KEYS_MAX + 1)]
    kept = [key for number, key in enumerate(keys) if number % 100 == 1]
    written = [*kept, *(key for number, key in enumerate(keys) if number % 100 == 0)]
    for key in written:
        store.put(key, b"x")
    store.put("odd/with space + and % & <xml>", b"x")
    gone = [key for key in keys if key not in kept]
    store.delete_many([*gone, "odd/with space + and % & <xml>", "none/at/all"])
    assert keys_of(store) == kept
    store.delete_many(gone)
    store.delete_many([])
    assert keys_of(store) == kept


def test_requests_that_delete() -> None:
    keys = [f"{number}" for number in range(2 * DELETE_KEYS_MAX + 1)]
    requests = list(delete_requests(keys))
    assert [len(request) for request in requests] == [DELETE_KEYS_MAX, DELETE_KEYS_MAX, 1]
    assert [key for request in requests for key in request] == keys
    assert list(delete_requests([])) == []


# ---- lists


@ALL_KINDS
def test_an_empty_store(store: ObjectStore) -> None:
    assert keys_of(store) == []
    assert keys_of(store, "00/11/") == []
    assert list(store.list_folders("")) == []
    assert list(store.list_folders("00/")) == []


@ALL_KINDS
def test_lists_are_in_the_order_of_keys(filled: ObjectStore) -> None:
    assert keys_of(filled) == KEYS
    for prefix in ("00/", "00/11/", "00/11/wal/", "00/11/wal/00000001/", f"{WAL}06.partial/"):
        assert keys_of(filled, prefix) == [key for key in KEYS if key.startswith(prefix)]
    for prefix in ("00/1/", "00/11/wal/00000002/", f"{WAL}05/", "z/"):
        assert keys_of(filled, prefix) == []


@pytest.mark.parametrize(
    "after", [*KEYS, f"{WAL}05~", f"{WAL}06.partial/", f"{WAL}06.partial/~", "0", "00/11/wal/", "~"]
)
def test_lists_begin_after_a_key(filled: ObjectStore, after: str) -> None:
    """Whether that object exists or not."""
    assert keys_of(filled, after=after) == [key for key in KEYS if key > after]
    prefix = "00/11/wal/00000001/"
    expected = [key for key in KEYS if key.startswith(prefix) and key > after]
    assert keys_of(filled, prefix, after) == expected


@ALL_KINDS
def test_names_that_sort_around_the_slash(store: ObjectStore) -> None:
    """`-` and `.` sort before it, digits after it."""
    keys = sorted(["a-/x", "a.b", "a/b", "a/b/c", "a/b-", "a0", "a", "b"])
    keys.remove("a")  # a folder cannot also be an object
    keys.remove("a/b")
    for key in keys:
        store.put(key, b"")
    assert keys_of(store) == keys
    for after in keys:
        assert keys_of(store, after=after) == [key for key in keys if key > after]


def test_the_fields_of_a_list(store: ObjectStore) -> None:
    store.put("a/b", b"12345")
    (info,) = store.list("a/")
    assert (info.key, info.size_bytes) == ("a/b", 5)
    assert info.modified_at.tzinfo is not None
    assert abs(datetime.now(UTC) - info.modified_at) < CLOCK_TOLERANCE


@ALL_KINDS
def test_more_than_a_page_of_a_list(store: ObjectStore) -> None:
    """An S3 server returns a limited number of keys at a time."""
    keys = [f"many/{number:06d}" for number in range(2 * PAGE_KEYS + 10)]
    for key in keys:
        store.put(key, b"")
    assert keys_of(store, "many/") == keys
    assert keys_of(store, "many/", keys[PAGE_KEYS // 2]) == keys[PAGE_KEYS // 2 + 1 :]


@ALL_KINDS
def test_folders(filled: ObjectStore) -> None:
    assert list(filled.list_folders("")) == ["00"]
    assert list(filled.list_folders("00/")) == ["11", "22"]
    assert list(filled.list_folders("00/11/")) == ["backups", "history", "wal"]
    assert list(filled.list_folders("00/22/")) == []
    assert list(filled.list_folders("00/33/")) == []


def test_a_folder_ends_with_its_last_object(store: ObjectStore) -> None:
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert list(store.list_folders("a/")) == []


# ---- concurrency


def test_exactly_one_creates(store: ObjectStore) -> None:
    """One of many concurrent callers, in each round; the object is completely that of the
    winner."""
    threads, rounds = 8, 10
    won: list[list[int]] = [[] for _ in range(rounds)]
    barrier = threading.Barrier(threads)

    def run(number: int) -> None:
        for turn in range(rounds):
            barrier.wait()
            if store.create(f"race/{turn}", b"%d" % number * 100_000):
                won[turn].append(number)

    racers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    for turn, winners in enumerate(won):
        (winner,) = winners
        assert store.get(f"race/{turn}") == b"%d" % winner * 100_000


def test_a_reader_sees_one_or_the_other(store: ObjectStore) -> None:
    """While the object is replaced, more than once by each content: never a part, and never no
    object."""
    contents = [b"%d" % number * 300_000 for number in range(10)]
    store.put("a/b", contents[0])
    written = reads = 0
    stop = threading.Event()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            for content in contents:
                store.put("a/b", content)
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive() and (written < 2 or reads < READS):
            assert store.get("a/b") in contents
            assert [info.key for info in store.list("a/")] == ["a/b"]
            reads += 1
    finally:
        stop.set()
        writer.join()
    assert written >= 2
