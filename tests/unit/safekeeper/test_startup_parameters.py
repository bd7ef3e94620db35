"""Parameters that a client may set when it connects. Compared with a walsender:
test_walsender_refusals.py."""

from __future__ import annotations

import pytest

from quorum_wal.pgwire.errors import ConnectionRefused
from quorum_wal.safekeeper.startup_parameters import check_startup_parameters

ID = "00112233445566778899aabbccddeeff"
PACKET = {"user": "u", "database": "replication", "replication": "true"}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"application_name": "walreceiver", "fallback_application_name.x": "y"},
        {"datestyle": "ISO", "timezone": "UTC", "extra_float_digits": "3"},
        {"client_encoding": "UTF8"},
        {"client_encoding": "iso-8859-1"},
        {"timeline_id": ID, "tenant_id": ID, "options": f"-c timeline_id={ID} -c tenant_id={ID}"},
        {"proposer_http": "127.0.0.1:7677"},
    ],
)
def test_what_is_taken(parameters: dict[str, str]) -> None:
    check_startup_parameters({**PACKET, **parameters})


@pytest.mark.parametrize(
    ("parameters", "sqlstate", "name"),
    [
        ({"timelineid": ID}, "42704", "timelineid"),
        ({"a": "1"}, "42704", "a"),
        ({"a.": "1"}, "42704", "a."),
        ({".a": "1"}, "42704", ".a"),
        ({"1a.b": "1"}, "42704", "1a.b"),
        ({"options": "-c database=x"}, "42704", "database"),
        ({"client_encoding": ""}, "22023", "client_encoding"),
        ({"client_encoding": "utf9"}, "22023", "client_encoding"),
        ({"timeline_id": ID[1:]}, "22023", "timeline_id"),
        ({"tenant_id": "none"}, "22023", "tenant_id"),
    ],
)
def test_what_is_refused(parameters: dict[str, str], sqlstate: str, name: str) -> None:
    with pytest.raises(ConnectionRefused, match=f'parameter "{name}"') as caught:
        check_startup_parameters({**PACKET, **parameters})
    assert caught.value.sqlstate == sqlstate
