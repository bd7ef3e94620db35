"""S3 as a process: `moto_server`, which answers as Amazon's does and keeps everything in memory."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import Self

from quorum_wal.objectstore.remote import RemoteStore
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import ServiceProcess

START_TIMEOUT = 60.0
#: In one answer to a list. Amazon's has up to a thousand, and each takes ten milliseconds to write.
PAGE_KEYS = 100
SECRET = "s3cr3t-4cc3ss-k3y"


class S3Server(ServiceProcess):
    """A context manager; every store of it has its own bucket."""

    def __init__(self, log_path: Path) -> None:
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self._numbers = count(1)
        program = Path(sys.executable).with_name("moto_server")
        super().__init__(
            [program, "-H", "127.0.0.1", "-p", str(port)],
            name="moto_server",
            log_path=log_path,
            env={"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_KEYS)},
        )

    def __enter__(self) -> Self:
        self.start()
        self.wait_until(self._answers, START_TIMEOUT, "it to answer")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "tester",
            "secret_access_key": SECRET,
        }

    def new_bucket(self) -> str:
        """The URL of an empty bucket."""
        name = f"bucket-{next(self._numbers)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            return f"s3://{name}"

    def new_store(self, prefix: str = "") -> RemoteStore:
        return RemoteStore(self.new_bucket() + prefix, self.options())
