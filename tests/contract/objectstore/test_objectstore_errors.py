"""Errors of a remote store: one sentence of ours that says whether a retry can help, without any
secret."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile_s3 import HostileS3, error_answer, hostile_s3, object_answer, silence
from s3_server import SECRET, S3Server

from quorum_wal.objectstore import remote
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pg_fixtures.ports import free_port

KEY = "00/11/timeline.json"
Request = Callable[[ObjectStore], object]

REQUESTS: dict[str, Request] = {
    "put": lambda store: store.put(KEY, b"x"),
    "create": lambda store: store.create(KEY, b"x"),
    "get": lambda store: store.get(KEY),
    "get_pieces": lambda store: list(store.get_pieces(KEY)),
    "get_tail": lambda store: store.get_tail(KEY, 32),
    "get_range": lambda store: store.get_range(KEY, 10, 32),
    "list": lambda store: list(store.list("00/")),
    "list_folders": lambda store: store.list_folders("00/"),
    "delete": lambda store: store.delete(KEY),
    "delete_many": lambda store: store.delete_many([KEY, f"{KEY}.other"]),
}


@pytest.fixture(params=REQUESTS)
def request_of(request: pytest.FixtureRequest) -> Request:
    return REQUESTS[request.param]


@pytest.fixture
def hostile() -> Iterator[HostileS3]:
    with hostile_s3() as server:
        yield server


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)


def failure(store: ObjectStore, request: Request) -> ObjectStoreError:
    with pytest.raises(ObjectStoreError) as caught:
        request(store)
    error = caught.value
    text = f"{error} {error.hint}"
    assert "\n" not in text
    assert SECRET not in text
    assert "Debug source" not in text
    assert len(str(error)) < 500, error
    assert not str(error).endswith(".")
    return error


def store_at(hostile: HostileS3) -> ObjectStore:
    options = hostile.options(access_key_id="tester", secret_access_key=SECRET)
    return open_store("s3://bucket/prefix", options)


# ---- a correct server


def test_a_bucket_that_is_missing(s3_server: S3Server, request_of: Request) -> None:
    """It may be created later. But "no such object" would be an answer, and the bucket gives
    none."""
    error = failure(open_store("s3://nobodys-bucket", s3_server.options()), request_of)
    assert not isinstance(error, ObjectNotFound)
    assert "s3://nobodys-bucket" in str(error)


def test_no_server_listens(request_of: Request) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    options = {"endpoint": endpoint, "region": "x", "access_key_id": "a"}
    store = open_store("s3://bucket", {**options, "secret_access_key": SECRET})
    error = failure(store, request_of)
    assert error.is_transient
    assert not isinstance(error, ObjectNotFound)


# ---- a faulty server


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests"), (502, "BadGateway")],
)
def test_a_server_with_errors(
    hostile: HostileS3, request_of: Request, status: int, code: str
) -> None:
    hostile.answer = error_answer(status, code)
    error = failure(store_at(hostile), request_of)
    assert error.is_transient
    assert not isinstance(error, ObjectNotFound)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidAccessKeyId"),
        (401, "Unauthorized"),
    ],
)
def test_wrong_credentials(hostile: HostileS3, request_of: Request, status: int, code: str) -> None:
    hostile.answer = error_answer(status, code)
    error = failure(store_at(hostile), request_of)
    assert "does not allow" in str(error)
    assert str(error).endswith(f": {code}: no")
    assert "credentials" in error.hint
    assert error.is_transient  # an operator can repair it meanwhile


def test_silence(hostile: HostileS3, request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "REQUEST_TIMEOUT_SECONDS", 1)
    released = threading.Event()
    hostile.answer = silence(released)
    try:
        assert failure(store_at(hostile), request_of).is_transient
    finally:
        released.set()


def test_some_are_not_deleted(hostile: HostileS3) -> None:
    """The request succeeded only in part: this is an error, which names the remaining objects."""
    error = "<Error><Key>prefix/a/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    body = f"<DeleteResult><Deleted><Key>prefix/a/c</Key></Deleted>{error}</DeleteResult>"
    hostile.answer = object_answer(body.encode())
    found = failure(store_at(hostile), lambda store: store.delete_many(["a/b", "a/c"]))
    assert "a/b" in str(found)
    assert not isinstance(found, ObjectNotFound)


@pytest.mark.parametrize("cut", [0, 1, 50_000, 99_999])
def test_half_an_object(hostile: HostileS3, cut: int) -> None:
    """It is never taken for the whole object."""
    hostile.answer = object_answer(bytes(100_000), cut=cut)
    assert failure(store_at(hostile), REQUESTS["get"]).is_transient


def test_another_object_than_was_written(hostile: HostileS3) -> None:
    """The seal detects a store that returns wrong content."""
    sealed = bytearray(seal(b"content" * 1000))
    sealed[10] ^= 1
    hostile.answer = object_answer(bytes(sealed))
    data = store_at(hostile).get(KEY)
    with pytest.raises(ObjectDamaged, match=f'object "{KEY}" is damaged') as error:
        unseal(data, KEY)
    assert not error.value.is_transient


# ---- URLs and options


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/prefix",
        f"https://tester:{SECRET}@host/bucket",
        "ftp://host/folder",
        "s3://",
        "relative/folder",
        "",
    ],
)
def test_invalid_urls(url: str) -> None:
    with pytest.raises(ObjectStoreError) as caught:
        open_store(url)
    text = f"{caught.value} {caught.value.hint}"
    assert SECRET not in text
    assert caught.value.hint
    assert not caught.value.is_transient
    assert "\n" not in text


def test_an_invalid_option() -> None:
    options = {"region": "x", "secret_access_keys": SECRET}
    with pytest.raises(ObjectStoreError) as caught:
        open_store("s3://bucket", options)
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert not caught.value.is_transient


def test_a_folder_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(ObjectStoreError, match="a folder has no options, found region"):
        open_store(str(tmp_path), {"region": SECRET})


def test_a_folder_by_its_url(tmp_path: Path) -> None:
    by_url = open_store(f"file://{tmp_path}/with%20space")
    by_url.put("a/b", b"x")
    assert open_store(f"{tmp_path}/with space").get("a/b") == b"x"
