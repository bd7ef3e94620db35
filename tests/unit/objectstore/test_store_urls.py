"""The URL of a store is printed, logged and shown on web pages, so it must not have a secret."""

from __future__ import annotations

import pytest

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import open_store
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.locks.lease import open_lock

SECRET = "wJalrXUtnFEMI"
URLS = (
    f"s3://AKIA:{SECRET}@bucket/prefix",
    f"s3://{SECRET}@bucket/prefix",
    f"s3://bucket/prefix?secret_access_key={SECRET}",
    f"az://container/prefix?sv=2024&sig={SECRET}",
    f"https://account.blob.core.windows.net/container#{SECRET}",
    f"file:///srv/archive?{SECRET}",
)


@pytest.mark.parametrize("url", URLS)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ObjectStoreError) as refused:
        open_store(url)
    with pytest.raises(Refusal) as no_lock:
        open_lock(url, 10.0)
    for error in (refused.value, no_lock.value):
        assert SECRET not in f"{error} {error.hint}"


def test_a_lock_in_etcd_has_no_secret_either() -> None:
    for url in (f"etcd://u:{SECRET}@host:1/x", f"etcds://host:1/x?password={SECRET}", "etcd:///x"):
        with pytest.raises(Refusal) as refused:
            open_lock(url, 10.0)
        assert SECRET not in f"{refused.value} {refused.value.hint}"


def test_a_folder_may_have_any_name() -> None:
    assert open_store("/srv/a?b#c").url == "/srv/a?b#c"
    assert open_store("file:///srv/a%3Fb%23c").url == "/srv/a?b#c"
