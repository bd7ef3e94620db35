"""S3, GCS, Azure and memory, by obstore (the Rust crate object_store).

One short attempt per call: the caller knows how long it can wait, reports the error, and retries. A
conditional write (`mode="create"`) needs a whole object: obstore sends parts only if the write may
replace an existing object. So pieces are gathered, and one object, in its packed form, is in memory
while it is sent. Reads are in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from quorum_wal.objectstore.delete_requests import delete_requests
from quorum_wal.objectstore.errors import ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.store import PIECE_BYTES, Data, ObjectInfo, named_keys

REQUEST_TIMEOUT_SECONDS = 30
#: Retries inside obstore, for errors in the middle of a request.
RETRY_SECONDS = 5
#: Requested at a time, of a large object: each request has the whole timeout.
RANGE_BYTES = 8 * PIECE_BYTES
HTTP_OPTION = "allow_http"
NOT_FOUND = (FileNotFoundError, exceptions.NotFoundError)
#: In the messages of S3, GCS and Azure if the bucket is missing, and not the object.
BUCKET_IS_MISSING = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
NOT_ALLOWED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
NOT_ALLOWED_STATUS = ("status code: 401", "status code: 403")


class RemoteStore:
    """`options` are those of the kind of store, as obstore names them: endpoint, region, ..."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url
        self._store: Any
        try:
            self._store = _open(url, options)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise ObjectStoreError(
                f'could not open archive "{url}": {_reason(error)}',
                hint="Use a folder, s3://, gs:// or az://, with the options in docs/archive.md.",
            ) from error

    def put(self, key: str, data: Data) -> None:
        with _gathered(data) as whole, self._errors(key, doing="write"):
            obstore.put(self._store, key, whole, use_multipart=False)

    def create(self, key: str, data: Data) -> bool:
        with _gathered(data) as whole, self._errors(key, doing="write"):
            try:
                obstore.put(self._store, key, whole, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, key: str) -> bytes:
        with self._errors(key, doing="read"):
            return bytes(obstore.get(self._store, key).bytes())

    def get_pieces(self, key: str) -> Iterator[bytes]:
        """All of one object. If it is replaced meanwhile, that is an error."""
        begin, size = 0, 1
        same: dict[str, Any] = {}
        while begin < size:
            with self._errors(key, doing="read"):
                options = {"range": (begin, begin + RANGE_BYTES), **same}
                try:
                    found = obstore.get(self._store, key, options=cast(Any, options))
                except exceptions.BaseError as error:
                    if begin == 0 and self._is_empty(key, error):
                        return
                    raise
                size, e_tag = found.meta["size"], found.meta["e_tag"]
                same = {"if_match": e_tag} if e_tag else {}
                part = memoryview(found.bytes())
                if not part:
                    raise OSError(f"the range from byte {begin} on is empty")
            for offset in range(0, len(part), PIECE_BYTES):
                yield bytes(part[offset : offset + PIECE_BYTES])
            begin += len(part)

    def get_tail(self, key: str, length: int) -> bytes:
        with self._errors(key, doing="read"):
            range_option = cast(Any, {"suffix": length})
            try:
                found = obstore.get(self._store, key, options={"range": range_option})
            except exceptions.BaseError as error:
                if self._is_empty(key, error):
                    return b""
                raise
            return bytes(found.bytes())

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        assert begin >= 0
        assert length >= 0
        with self._errors(key, doing="read"):
            if length == 0:
                obstore.head(self._store, key)
                return b""
            options = cast(Any, {"range": (begin, begin + length)})
            try:
                return bytes(obstore.get(self._store, key, options=options).bytes())
            except exceptions.BaseError as error:
                if self._ends_before(key, begin, error):
                    return b""
                raise

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        assert not prefix or prefix.endswith("/")
        with self._errors(prefix, doing="list"):
            for chunk in obstore.list(self._store, prefix or None, offset=after or None):
                for meta in sorted(chunk, key=lambda m: m["path"]):
                    yield ObjectInfo(meta["path"], meta["size"], meta["last_modified"])

    def list_folders(self, prefix: str) -> Sequence[str]:
        with self._errors(prefix, doing="list"):
            found = obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
            return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, key: str) -> None:
        with self._errors(key, doing="delete"):
            try:
                obstore.delete(self._store, key)
            except NOT_FOUND as error:
                if _mentions(error, BUCKET_IS_MISSING):
                    raise

    def delete_many(self, keys: Sequence[str]) -> None:
        for request in delete_requests(keys):
            with self._errors(*request, doing="delete"):
                try:
                    obstore.delete(self._store, request)
                except NOT_FOUND as error:
                    # The request may have ended at a missing key: the memory store does so.
                    if _mentions(error, BUCKET_IS_MISSING):
                        raise
                    for key in request:
                        self.delete(key)

    def _is_empty(self, key: str, error: Exception) -> bool:
        """Whether a range was refused because the object is empty (416)."""
        return self._ends_before(key, 0, error)

    def _ends_before(self, key: str, begin: int, error: Exception) -> bool:
        """Whether a range was refused because the object ends before it (416)."""
        return not _is_refused(error) and obstore.head(self._store, key)["size"] <= begin

    @contextmanager
    def _errors(self, *keys: str, doing: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            # All of them are transient: an operator can correct the cause while we run.
            if _mentions(error, BUCKET_IS_MISSING):
                raise ObjectStoreError(
                    f"{self.url} does not exist",
                    hint="Create the bucket, or correct the URL.",
                    is_transient=True,
                ) from error
            if isinstance(error, NOT_FOUND):
                raise ObjectNotFound(
                    f"object {named_keys(keys)} does not exist in {self.url}"
                ) from error
            if _is_refused(error):
                raise ObjectStoreError(
                    f"{self.url} does not allow to {doing} {named_keys(keys)}: {_reason(error)}",
                    hint="Check the credentials (AWS_ACCESS_KEY_ID, ...) and their permissions.",
                    is_transient=True,
                ) from error
            raise ObjectStoreError(
                f"could not {doing} {named_keys(keys)} in {self.url}: {_reason(error)}",
                is_transient=True,
            ) from error


@contextmanager
def _gathered(data: Data) -> Iterator[bytes | list[bytes | memoryview]]:
    """Gathers all pieces for one request. Frees them one by one afterwards: freeing a gibibyte at
    once would hold the interpreter for a tenth of a second."""
    if isinstance(data, bytes):
        yield data
        return
    pieces = list(data)
    try:
        yield pieces
    finally:
        while pieces:
            pieces.pop()


def _open(url: str, options: Mapping[str, str]) -> Any:
    if url == "memory://":
        return MemoryStore()
    settings = dict(options)
    client = {"timeout": f"{REQUEST_TIMEOUT_SECONDS}s"}
    is_plain = settings.pop(HTTP_OPTION, "") == "true"
    if is_plain or settings.get("endpoint", "").startswith("http://"):
        client[HTTP_OPTION] = "true"
    return from_url(
        url,
        config=cast(Any, settings),
        client_options=cast(Any, client),
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    )


def _is_refused(error: Exception) -> bool:
    return isinstance(error, NOT_ALLOWED) or _mentions(error, NOT_ALLOWED_STATUS)


def _mentions(error: Exception, words: Sequence[str]) -> bool:
    text = str(error)
    return any(word in text for word in words)


def _reason(error: Exception) -> str:
    """The reason in one line: of S3's XML the code and the message. Without obstore's debug text,
    which repeats the request."""
    text = str(error).partition("\n\nDebug source")[0].strip()
    before, xml, answer = text.partition("<?xml")
    if not xml:
        return text.partition("\n")[0]
    words = (re.search(f"<{tag}>(.*?)</{tag}>", answer, re.DOTALL) for tag in ("Code", "Message"))
    said = ": ".join(" ".join(word[1].split()) for word in words if word is not None)
    return f"{before}{said}" if said else before.removesuffix(": ")
