"""The configuration files of a branch: tested before creation, written at its end.

The cluster's own files are kept under another file name extension for the user to read. `postgres
-C` checks a configuration; it reads the files and does nothing else.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from quorum_wal.pageserver.branches.branch_folder import BranchFolder
from quorum_wal.pageserver.branches.branch_settings import (
    AUTO_CONF,
    CLUSTER_SUFFIX,
    CONF,
    HBA,
    IDENT,
    LOCAL_HBA,
    OUTPUT_SETTINGS,
    configuration,
    own_settings,
)
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pg_server.program import run_program
from quorum_wal.storage import durable

_NOTHING: Mapping[str, str] = MappingProxyType({})
_LOG_PREFIX = re.compile(r".*?(?:LOG|FATAL):\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """`settings` are written to postgresql.conf. With `cluster_hba` the branch uses the cluster's
    pg_hba.conf."""

    target: RecoveryTarget
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster_hba: bool = False
    is_synced: bool = True


class BranchConfiguration:
    """The configuration of one branch. Methods raise BranchError, PgServerError, StorageError,
    OSError."""

    def __init__(self, folder: BranchFolder, redo: RedoServer, request: BranchRequest) -> None:
        self._folder = folder
        self._redo = redo
        self._request = request
        self._output_settings: Mapping[str, str] = _NOTHING

    # ---- before any file is written

    def check(self) -> None:
        """Raises BranchError if Postgres does not accept the user's settings."""
        refusal = self._refusal(self._configuration(0))
        if refusal:
            raise BranchError(
                f"Postgres does not accept a setting: {refusal}",
                hint="Correct the setting given with --set.",
            )

    def check_access(self, frame: Frame) -> None:
        """Raises BranchError if the user asked for the cluster's pg_hba.conf and there is none."""
        if self._request.cluster_hba and HBA not in frame.names():
            raise BranchError(
                "the cluster has no pg_hba.conf in its data directory",
                hint="Omit --cluster-hba. Then users connect by password on the loopback "
                "interface, or by the socket.",
            )

    # ---- the files

    def rename_cluster_files(self) -> None:
        """Renames the cluster's configuration files."""
        self._output_settings = self._read_output_settings()
        for name in (CONF, AUTO_CONF, HBA, IDENT):
            path = self._folder.data / name
            if path.exists():
                path.rename(path.with_name(name + CLUSTER_SUFFIX))

    def _read_output_settings(self) -> dict[str, str]:
        """Reads these settings from the cluster's files. Returns none if a file cannot be read on
        this machine: it may be outside the data directory, or include a missing file."""
        found = {}
        for name in OUTPUT_SETTINGS:
            done = self._configured(self._folder.data, name)
            if done.returncode != 0:
                return {}
            found[name] = done.stdout.removesuffix("\n")
        return found

    def write(self, prepared_max: int) -> None:
        data = self._folder.data
        conf = self._configuration(prepared_max, self._output_settings)
        if self._refusal(conf):  # for example, a time zone that this machine does not have
            conf = self._configuration(prepared_max)
        files = {CONF: conf.encode(), AUTO_CONF: b""}
        files |= self._access_files()
        for name, content in files.items():
            durable.replace_file(data / name, content, like=data / "PG_VERSION")

    def _access_files(self) -> dict[str, bytes]:
        if not self._request.cluster_hba:
            return {HBA: LOCAL_HBA.encode(), IDENT: b""}
        hba, ident = (self._folder.data / (name + CLUSTER_SUFFIX) for name in (HBA, IDENT))
        return {HBA: hba.read_bytes(), IDENT: ident.read_bytes() if ident.exists() else b""}

    # ---- checks by Postgres

    def _configuration(
        self, prepared_max: int, output_settings: Mapping[str, str] = _NOTHING
    ) -> str:
        settings = own_settings(self._folder.name, self._request.port, prepared_max)
        return configuration({**output_settings, **settings, **self._request.settings})

    def _refusal(self, conf: str) -> str:
        """The error that Postgres reports for a configuration, or "" if it accepts it."""
        with tempfile.TemporaryDirectory(dir=self._folder.work) as created:
            folder = Path(created)
            self._redo.give(folder)
            for name, text in ((CONF, conf), (AUTO_CONF, "")):
                (folder / name).write_text(text)
                self._redo.give(folder / name)
            done = self._configured(folder, "port")
        if done.returncode == 0:
            return ""
        first = next(iter(done.stderr.splitlines()), "postgres printed no error message")
        return _LOG_PREFIX.sub("", first)

    def _configured(self, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
        """The value of a setting as Postgres reads it from the files there."""
        postgres = self._redo.binaries.program("postgres")
        return run_program(
            [postgres, "-C", name, "-D", folder], account=self._redo.account, check=False
        )
