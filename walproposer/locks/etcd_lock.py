"""A lock in etcd: a key that exists as long as a lease, through the JSON gateway of etcd's v3 API.

Properties of the gateway: keys and values are base64, 64-bit numbers are strings, false values are
omitted, and the answer to a keepalive is wrapped in "result". Source: etcd `api/v3` (rpc.proto).
"""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.request
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from quorum_wal.walproposer.errors import Refusal, Unreachable

REQUEST_TIMEOUT_SECONDS = 3.0
ANSWER_BYTES_MAX = 1 << 20
DEFAULT_NAME = "sk"

T = TypeVar("T")


class EtcdLock:
    """Implements `lease.Lock`; `etcds://` uses TLS. Raises Refusal if the URL is invalid."""

    def __init__(self, url: str, lease_seconds: float) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
            self._key = _base64(parts.path.strip("/") or DEFAULT_NAME)
        except ValueError:  # the message may have credentials
            raise Refusal(
                "the lock's URL is not valid", hint="Use etcd://host:port/name."
            ) from None
        has_more = parts.username or parts.password or parts.query or parts.fragment
        if has_more or not parts.hostname:
            raise Refusal(
                "the lock's URL has credentials, options, or no host",
                hint="Use etcd://host:port/name. Protect etcd by its network.",
            )
        self.url = url
        self.holder = ""
        scheme = "https" if parts.scheme == "etcds" else "http"
        self._base = f"{scheme}://{parts.netloc}"
        self._lease_seconds = lease_seconds
        self._lease_id = ""

    def acquire(self, holder: str) -> bool:
        if not self._lease_id:
            seconds = str(max(1, round(self._lease_seconds)))
            self._lease_id = self._ask("lease/grant", {"TTL": seconds}, _Granted).ID
        elif not self._keep_alive():
            self._lease_id = ""
            return False
        is_free = {
            "target": "CREATE",
            "key": self._key,
            "result": "EQUAL",
            "create_revision": "0",
        }
        take = {"key": self._key, "value": _base64(holder), "lease": self._lease_id}
        answer = self._ask(
            "kv/txn",
            {
                "compare": [is_free],
                "success": [{"request_put": take}],
                "failure": [{"request_range": {"key": self._key}}],
            },
            _Transaction,
        )
        if answer.succeeded:
            self.holder = holder
            return True
        for pair in (pair for r in answer.responses for pair in r.response_range.kvs):
            self.holder = pair.value.decode(errors="replace")
            # The answer to our own request may have been lost.
            return pair.lease == self._lease_id
        return False

    def renew(self) -> bool:
        return self._keep_alive()

    def release(self) -> None:
        lease_id, self._lease_id, self.holder = self._lease_id, "", ""
        self._ask("lease/revoke", {"ID": lease_id}, _Anything)

    def _keep_alive(self) -> bool:
        """Returns False if the lease has expired."""
        return self._ask("lease/keepalive", {"ID": self._lease_id}, _KeptAlive).result.TTL > 0

    def _ask(self, path: str, body: dict[str, Any], answer_type: type[T]) -> T:
        request = urllib.request.Request(
            f"{self._base}/v3/{path}",
            msgspec.json.encode(body),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
                data = answer.read(ANSWER_BYTES_MAX)
            return msgspec.json.decode(data, type=answer_type, strict=False)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(ANSWER_BYTES_MAX).decode(errors="replace").strip()
            raise Unreachable(f"etcd at {self._base} refused: {text}") from error
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._base} does not answer like etcd: {error}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"etcd at {self._base} does not answer: {reason}") from error


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# ---- answers; an absent field is false, zero or empty


class _Anything(msgspec.Struct):
    """An answer whose fields are not used."""


class _Granted(msgspec.Struct):
    ID: str


class _Lifetime(msgspec.Struct):
    TTL: int = 0


class _KeptAlive(msgspec.Struct):
    result: _Lifetime


class _Pair(msgspec.Struct):
    value: bytes = b""
    lease: str = ""


class _Range(msgspec.Struct):
    kvs: list[_Pair] = []


class _Response(msgspec.Struct):
    response_range: _Range = msgspec.field(default_factory=_Range)


class _Transaction(msgspec.Struct):
    succeeded: bool = False
    responses: list[_Response] = []


#: Prepared by the import: msgspec crashes if several threads use a type first.
_PREPARED = tuple(
    msgspec.json.Decoder(kind) for kind in (_Granted, _KeptAlive, _Transaction, _Anything)
)
