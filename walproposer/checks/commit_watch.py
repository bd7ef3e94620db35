"""Checks periodically whether the primary's commits wait for the quorum, and for nothing less.

    every CHECK_SECONDS -> preflight_commits.py -> log, status page, metrics

The proposer confirms commits, but its stream does not show whether Postgres waits for it. A user
may have emptied synchronous_standby_names, or another client may use its application_name. A
problem may be temporary (`--configure` may be setting the names), so it is reported when it is
found twice. The watch changes nothing, and keeps no connection open: a smart shutdown would wait
for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Thread

import structlog

from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.checks.finding import Finding, Level
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

log = structlog.get_logger()

CHECK_SECONDS = 10.0
CHECK_AGAIN_SECONDS = 1.0


class CommitWatch:
    """`problems`: why commits return without the quorum, each with a remedy; None: unknown."""

    def __init__(
        self, address: PrimaryAddress, stopping: StopSignal, is_streaming: Callable[[], bool]
    ) -> None:
        self._address = address
        self._stopping = stopping
        self._is_streaming = is_streaming
        self._seen: set[str] = set()
        self.problems: list[str] | None = None

    def start(self) -> None:
        """Run in a thread until `stopping`."""
        Thread(target=self._run, name="commit watch", daemon=True).start()

    def _run(self) -> None:
        while not self._stopping.is_set:
            if self._is_streaming():
                self._ask()
            else:
                self._forget()
            is_settled = self.problems is not None and not self._seen
            self._stopping.wait(CHECK_SECONDS if is_settled else CHECK_AGAIN_SECONDS)

    def _ask(self) -> None:
        # Imported here because a starting proposer does not need it yet, and commits wait for the
        # start.
        from quorum_wal.walproposer.checks.preflight_commits import check_protection
        from quorum_wal.walproposer.primary.primary_settings import inspect_primary

        try:
            with closing(self._address.connect(options="")) as connection:
                settings = inspect_primary(connection, self._address)
            self._evaluate(list(check_protection(settings, self._address)))
        except WalProposerError as error:
            log.debug("could not check the commits of the primary", reason=str(error))
            self._forget()

    def _forget(self) -> None:
        """The primary is unavailable, so earlier findings may be out of date."""
        self._seen, self.problems = set(), None

    def _evaluate(self, findings: list[Finding]) -> None:
        failures = [finding for finding in findings if finding.level is Level.FAIL]
        again = [finding for finding in failures if finding.check in self._seen]
        self._seen = {finding.check for finding in failures}
        if failures and not again:
            return
        problems = [finding.sentence for finding in again]
        if problems and not self.problems:
            log.error("COMMITS RETURN WITHOUT THE QUORUM", reason="; ".join(problems))
        elif self.problems and not problems:
            log.info("commits wait for the quorum again")
        self.problems = problems
