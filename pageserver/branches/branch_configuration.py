"""The files by which a branch is configured: tried out before, written at the end.

What the cluster has of them is set aside, under another ending, for a person to read. Postgres is
asked what it makes of a file, by `postgres -C`, which reads it and nothing else.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pageserver.branches.branch_folder import BranchFolder
from pageserver.branches.branch_settings import (
    AUTO_CONF,
    CONF,
    HBA,
    IDENT,
    LOCAL_HBA,
    OF_ANSWERS,
    OF_CLUSTER,
    configuration,
    own_settings,
)
from pageserver.epochs.redo import RedoServer
from pageserver.errors import BranchError
from pageserver.layers.frame import Frame
from pageserver.moments.moments import Moment
from pg_server.program import run_program
from storage import durable

_NOTHING: Mapping[str, str] = MappingProxyType({})
_LOG_PREFIX = re.compile(r".*?(?:LOG|FATAL):\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """`settings` are for its postgresql.conf; `cluster_hba`: who may connect is as the cluster's
    pg_hba.conf says."""

    moment: Moment
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster_hba: bool = False
    is_synced: bool = True


class BranchConfiguration:
    """Of one branch. Methods raise BranchError, PgServerError, StorageError, OSError."""

    def __init__(self, folder: BranchFolder, redo: RedoServer, request: BranchRequest) -> None:
        self._folder = folder
        self._redo = redo
        self._request = request
        self._answer_settings: Mapping[str, str] = _NOTHING

    # ---- before anything is written

    def check(self) -> None:
        """Raises BranchError: Postgres does not accept what a user sets."""
        refusal = self._refusal(self._configuration(0))
        if refusal:
            raise BranchError(f"Postgres refuses a setting: {refusal}", hint="See --set.")

    def check_access(self, frame: Frame) -> None:
        """Raises BranchError: the cluster has no file that says who may connect."""
        if self._request.cluster_hba and HBA not in frame.names():
            raise BranchError(
                "the cluster has no pg_hba.conf in its data directory",
                hint="Without --cluster-hba: by password on the loopback, or by the socket.",
            )

    # ---- the files

    def set_aside(self) -> None:
        """Those of the cluster."""
        self._answer_settings = self._read_answer_settings()
        for name in (CONF, AUTO_CONF, HBA, IDENT):
            path = self._folder.data / name
            if path.exists():
                path.rename(path.with_name(name + OF_CLUSTER))

    def _read_answer_settings(self) -> dict[str, str]:
        """Out of the cluster's files. None of them, where those cannot be read on this machine:
        they are not in the data directory, or include what is not there."""
        found = {}
        for name in OF_ANSWERS:
            done = self._configured(self._folder.data, name)
            if done.returncode != 0:
                return {}
            found[name] = done.stdout.removesuffix("\n")
        return found

    def write(self, prepared_max: int) -> None:
        data = self._folder.data
        conf = self._configuration(prepared_max, self._answer_settings)
        if self._refusal(conf):  # a time zone that this machine does not have, for instance
            conf = self._configuration(prepared_max)
        files = {CONF: conf.encode(), AUTO_CONF: b""}
        files |= self._access_files()
        for name, content in files.items():
            durable.replace_file(data / name, content, like=data / "PG_VERSION")

    def _access_files(self) -> dict[str, bytes]:
        if not self._request.cluster_hba:
            return {HBA: LOCAL_HBA.encode(), IDENT: b""}
        hba, ident = (self._folder.data / (name + OF_CLUSTER) for name in (HBA, IDENT))
        return {HBA: hba.read_bytes(), IDENT: ident.read_bytes() if ident.exists() else b""}

    # ---- what Postgres makes of them

    def _configuration(self, prepared_max: int, answers: Mapping[str, str] = _NOTHING) -> str:
        settings = own_settings(self._folder.name, self._request.port, prepared_max)
        return configuration({**answers, **settings, **self._request.settings})

    def _refusal(self, conf: str) -> str:
        """What Postgres has against a configuration; "" when it takes it."""
        with tempfile.TemporaryDirectory(dir=self._folder.work) as created:
            folder = Path(created)
            self._redo.give(folder)
            for name, text in ((CONF, conf), (AUTO_CONF, "")):
                (folder / name).write_text(text)
                self._redo.give(folder / name)
            done = self._configured(folder, "port")
        if done.returncode == 0:
            return ""
        first = next(iter(done.stderr.splitlines()), "it gave no reason")
        return _LOG_PREFIX.sub("", first)

    def _configured(self, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
        """As Postgres reads the files there; it looks at nothing else."""
        postgres = self._redo.binaries.program("postgres")
        return run_program(
            [postgres, "-C", name, "-D", folder], account=self._redo.account, check=False
        )
