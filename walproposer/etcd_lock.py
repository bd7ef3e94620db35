"""A lock in etcd: a key that lives as long as a lease, by the JSON gateway of etcd's v3 API.

Traps of the gateway: keys and values are base64, 64-bit numbers are strings, what is false is left
out, and the answer to a keepalive is wrapped in "result". Source: etcd `api/v3` (rpc.proto).
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from walproposer.errors import Refusal, Unreachable

REQUEST_TIMEOUT_SECONDS = 3.0
ANSWER_BYTES_MAX = 1 << 20
DEFAULT_NAME = "sk"


class EtcdLock:
    """As `lease.Lock`; `etcds://` speaks TLS. Raises Refusal when the URL makes no sense."""

    def __init__(self, url: str, lease_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password or not parts.hostname:
            raise Refusal(
                "the lock's URL has credentials, or no host",
                hint="Say etcd://host:port/name; etcd is protected by its network.",
            )
        self.url = url
        self.holder = ""
        scheme = "https" if parts.scheme == "etcds" else "http"
        self._base = f"{scheme}://{parts.netloc}"
        self._key = _text(parts.path.strip("/") or DEFAULT_NAME)
        self._lease_seconds = lease_seconds
        self._lease_id = ""

    def acquire(self, holder: str) -> bool:
        if not self._lease_id:
            granted = self._ask("lease/grant", {"TTL": str(max(1, round(self._lease_seconds)))})
            self._lease_id = str(granted["ID"])
        elif not self._keep_alive():
            self._lease_id = ""
            return False
        answer = self._ask(
            "kv/txn",
            {
                "compare": [
                    {
                        "target": "CREATE",
                        "key": self._key,
                        "result": "EQUAL",
                        "create_revision": "0",
                    }
                ],
                "success": [
                    {
                        "request_put": {
                            "key": self._key,
                            "value": _text(holder),
                            "lease": self._lease_id,
                        }
                    }
                ],
                "failure": [{"request_range": {"key": self._key}}],
            },
        )
        if answer.get("succeeded"):
            self.holder = holder
            return True
        (found,) = answer["responses"]
        for pair in found["response_range"].get("kvs", ()):
            self.holder = base64.b64decode(pair["value"]).decode(errors="replace")
            # The answer to our own request may have been lost.
            return str(pair.get("lease", "")) == self._lease_id
        return False

    def renew(self) -> bool:
        return self._keep_alive()

    def release(self) -> None:
        lease_id, self._lease_id, self.holder = self._lease_id, "", ""
        self._ask("lease/revoke", {"ID": lease_id})

    def _keep_alive(self) -> bool:
        """False when etcd has forgotten the lease."""
        answer = self._ask("lease/keepalive", {"ID": self._lease_id})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._base}/v3/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(ANSWER_BYTES_MAX).decode(errors="replace").strip()
            raise Unreachable(f"etcd at {self._base} refused: {text}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"etcd at {self._base} does not answer: {reason}") from error
        if not isinstance(found, dict):
            raise Unreachable(f"etcd at {self._base} answered something else than an object")
        return found


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
