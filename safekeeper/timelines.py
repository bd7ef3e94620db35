"""All timelines of one safekeeper: opened at the start, created and deleted by command only.

A start opens all timelines, but loads only as many as its time allows (`start_check.py` does the
rest). So the first ones can vote before the last one is loaded. A timeline whose log lacks a
segment or its end is loaded in any case, so that the damage is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic

import structlog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import check_wal_seg_size
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from quorum_wal.safekeeper.control_state import ControlState, encode_control_state
from quorum_wal.safekeeper.data_directory import DataDirectory, no_such_timeline, parse_folder_name
from quorum_wal.safekeeper.errors import ControlFileError, TimelineError
from quorum_wal.safekeeper.force_rule import forced, streaming_refusal
from quorum_wal.safekeeper.join_rules import activated, departed, joined
from quorum_wal.safekeeper.refusals import WRONG_STATE, departure
from quorum_wal.safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from quorum_wal.safekeeper.tenant_limits import NO_LIMITS, TenantLimits, WalQuota, check_timelines
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

#: How long a start loads timelines, one after another; the others sleep.
START_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TimelinePolicy:
    """The operator's settings, the same for all timelines."""

    retention: RetentionPolicy = DEFAULT_RETENTION
    archive: ArchiveSettings | None = None
    tenant_limits: TenantLimits = NO_LIMITS
    start_seconds: float = START_SECONDS


DEFAULT_POLICY = TimelinePolicy()


class Timelines:
    """Thread-safe map of the timelines. `damaged` maps a folder to the reason why it could not be
    opened. Such a timeline never votes; the others are served."""

    def __init__(
        self,
        data_directory: DataDirectory,
        hooks: TimelineHooks,
        policy: TimelinePolicy = DEFAULT_POLICY,
    ) -> None:
        self.data_directory = data_directory
        self._hooks = hooks
        self._policy = policy
        self.damaged: dict[str, str] = {}
        self._lock = Lock()
        self._timelines: dict[TimelineId, Timeline] = {}
        deadline = monotonic() + policy.start_seconds
        for folder in sorted(data_directory.existing(), key=_written_at, reverse=True):
            self._open(folder, loads=monotonic() < deadline)
        self._timelines = dict(sorted(self._timelines.items()))

    def _open(self, folder: Path, *, loads: bool = True) -> None:
        try:
            if parse_folder_name(folder.name) is None:
                raise ControlFileError(
                    f'"{folder}" does not have the name of a timeline',
                    hint="Restore its name, or move it out of the data directory.",
                )
            control = ControlFile.read(folder)
            self._check_place(folder, control.state)
        except ControlFileError as error:
            self.damaged[folder.name] = f"{error}. {error.hint}".removesuffix(". ")
            return
        if control.state.has_left:
            self._remove_rest(control.state.timeline)
        timeline = Timeline(
            self.data_directory.safekeeper_id,
            self.data_directory.instance,
            folder,
            control,
            self._hooks,
            self._policy.retention,
            self._policy.archive,
            is_awake=loads,
        )
        timeline.room.quota = self._quota(control.state.timeline)
        self._timelines[control.state.timeline] = timeline

    def _quota(self, timeline: TimelineId) -> WalQuota | None:
        limit_bytes, tenant_id = self._policy.tenant_limits.wal_bytes_max, timeline.tenant_id
        if not limit_bytes:
            return None
        return WalQuota(
            limit_bytes,
            tenant_id,
            lambda: sum(each.sleep.wal_bytes for each in self._of_tenant(tenant_id)),
        )

    def _of_tenant(self, tenant_id: bytes) -> list[Timeline]:
        """Without timelines that were left: their logs were removed."""
        return [t for t in self.all() if t.is_of_tenant(tenant_id)]

    def _check_tenant(self, timeline: TimelineId) -> None:
        count = len(self._of_tenant(timeline.tenant_id))
        check_timelines(self._policy.tenant_limits, timeline.tenant_id, count)

    def _remove_rest(self, timeline: TimelineId) -> None:
        """Removes the remains of an interrupted LEAVE_TIMELINE. A failure is only logged."""
        try:
            self.data_directory.remove_log(timeline)
        except StorageError as error:
            log.error("WAL not removed", timeline=str(timeline), reason=str(error))

    def _check_place(self, folder: Path, state: ControlState) -> None:
        """Refuses a folder that was copied under another name: it would repeat the promises."""
        if folder != self.data_directory.folder(state.timeline):
            raise ControlFileError(
                f'control file "{folder / CONTROL_FILE_NAME}" belongs to timeline {state.timeline}',
                hint="Move the copy out of the data directory.",
            )

    def get(self, timeline: TimelineId) -> Timeline:
        """Raises TimelineError."""
        try:
            return self._timelines[timeline]
        except KeyError:
            self._check_not_damaged(timeline)
            raise no_such_timeline(timeline) from None

    def _check_not_damaged(self, timeline: TimelineId) -> None:
        """A member that lost its promises must not begin again under the same id."""
        folder = self.data_directory.folder(timeline)
        if folder.name in self.damaged:
            raise TimelineError(self.damaged[folder.name], sqlstate="XX001")

    def all(self) -> list[Timeline]:
        return list(self._timelines.values())

    def awake(self) -> list[Timeline]:
        """The timelines that are used, or were used recently; only they need periodic work."""
        return [timeline for timeline in self.all() if not timeline.sleep.is_asleep]

    def create(
        self,
        timeline: TimelineId,
        server: ServerFacts,
        membership: Membership,
        start_lsn: int,
        history: TimelineHistory,
    ) -> None:
        """The first step of a creation; may be repeated with equal facts.

        Raises TimelineError if it exists with other facts, or was deleted.
        """
        check_wal_seg_size(server.wal_seg_size)
        wal_version(server.pg_major)
        if start_lsn <= 0 or start_lsn % server.wal_seg_size:
            raise TimelineError(f"start {start_lsn:X} is not a segment's start", sqlstate="22023")
        self._check_first(membership)
        state = ControlState(
            timeline=timeline,
            server=server,
            active=False,
            membership=membership,
            promised=NodeId.ZERO,
            term_history=TermHistory.initial(start_lsn),
            tli_history=history,
            timeline_start_lsn=start_lsn,
            local_start_lsn=start_lsn,
            commit_lsn=start_lsn,
            truncate_lsn=start_lsn,
            flush_lsn=start_lsn,
        )
        with self._lock:
            if timeline in self._timelines:
                self._check_same(self._timelines[timeline].control, state)
                return
            self._check_unused(timeline)
            self._check_not_left(server)
            self._check_tenant(timeline)
            self._write_new(state)

    def _check_first(self, membership: Membership) -> None:
        """A creation takes only the first membership, which must name this safekeeper."""
        safekeeper_id, instance = self.data_directory.safekeeper_id, self.data_directory.instance
        problem = ""
        if safekeeper_id not in membership.members:
            problem = f"safekeeper {safekeeper_id} is not one of the members {membership.members}"
        elif membership.stamp != Stamp.FIRST or membership.is_joint:
            problem = f"membership {membership.stamp} is not the first one of a new timeline"
        elif not membership.member(safekeeper_id).is_instance(instance):
            problem = (
                f"safekeeper {safekeeper_id} has instance {instance.hex()}, the membership says "
                f"{membership.member(safekeeper_id).instance.hex()}"
            )
        if problem:
            raise TimelineError(problem, sqlstate="22023")

    def _check_unused(self, timeline: TimelineId) -> None:
        """Checks that it is not damaged or deleted: its promises would be lost."""
        self._check_not_damaged(timeline)
        if self.data_directory.has_tombstone(timeline):
            raise TimelineError(
                f"timeline {timeline} was deleted; its name is never used again",
                hint="Create a timeline with another id.",
                sqlstate="42710",
            )

    def _check_not_left(self, server: ServerFacts) -> None:
        """The log of that system continues on other safekeepers: a new one would be a second."""
        for timeline in self.all():
            control = timeline.control
            if control.has_left and control.server.system_id == server.system_id:
                raise TimelineError(
                    f"timeline {control.timeline} of the same system was left here, and continues "
                    "on other safekeepers",
                    hint=departure(control).hint,
                    sqlstate=WRONG_STATE,
                )

    def _check_same(self, existing: ControlState, wanted: ControlState) -> None:
        """The stamp is not compared: it changes as soon as a leader is elected."""
        same = (existing.server, existing.timeline_start_lsn, existing.membership.groups) == (
            (wanted.server, wanted.timeline_start_lsn, wanted.membership.groups)
        )
        if not same or existing.has_left:
            raise TimelineError(
                f"timeline {wanted.timeline} exists already, created with other parameters",
                sqlstate="42710",
            )

    def _write_new(self, state: ControlState) -> None:
        """Built under a temporary name, so that a crash leaves either all of it or nothing."""
        folder = self.data_directory.folder(state.timeline)
        temporary = folder.with_name(folder.name + ".tmp")
        durable.make_directory(temporary / "wal")
        durable.replace_file(temporary / CONTROL_FILE_NAME, encode_control_state(state))
        durable.publish_file(temporary, folder)
        self._open(folder)

    def join(self, timeline: TimelineId, offer: TimelineOffer) -> None:
        """Begins the log here at the offer's start; the same offer may be repeated. A crash leaves
        the old state or the new one. Raises TimelineError, WalError, StorageError."""
        safekeeper_id = self.data_directory.safekeeper_id
        with self._lock:
            existing = self._timelines.get(timeline)
            if existing is None:
                self._check_unused(timeline)
                self._check_tenant(timeline)
                self._write_new(joined(safekeeper_id, timeline, offer, None))
                return
            state = joined(safekeeper_id, timeline, offer, existing.control)
            if state == existing.control:
                return
            self._check_tenant(timeline)
            self.data_directory.remove_log(timeline)
            try:
                existing.finish(lambda _: state, "this member joins the timeline again")
            finally:
                self._open(self.data_directory.folder(timeline))

    def leave(self, timeline: TimelineId, membership: Membership) -> None:
        """Durably leaves the timeline, then removes its WAL. May be repeated; that continues an
        interrupted removal. Raises TimelineError, StorageError."""
        safekeeper_id = self.data_directory.safekeeper_id
        with self._lock:
            existing = self.get(timeline)
            existing.finish(
                lambda control: departed(safekeeper_id, control, membership),
                "this member has left the timeline",
            )
            try:
                self.data_directory.remove_log(timeline)
            finally:
                self._open(self.data_directory.folder(timeline))

    def activate(self, timeline: TimelineId) -> None:
        """The second step of a creation: all members have the timeline, so it may vote. Raises
        TimelineError, StorageError."""
        with self._lock:
            self.get(timeline).amend(activated, "the timeline was activated")

    def force(self, timeline: TimelineId, membership: Membership) -> None:
        """Sets other members, by an operator's command; may be repeated. Raises TimelineError,
        StorageError."""
        own = self.data_directory

        def change(control: ControlState) -> ControlState:
            streaming = self.get(timeline).streaming
            if streaming is not None:
                raise streaming_refusal(str(streaming.describe()["address"]))
            return forced(own.safekeeper_id, own.instance, control, membership)

        with self._lock:
            self.get(timeline).amend(change, "an operator has forced other members")

    def delete(self, timeline: TimelineId, *, unfinished_only: bool = False) -> None:
        """Deletes it for good. Raises TimelineError, StorageError.

        `unfinished_only` is for the removal of an interrupted creation: it refuses a timeline that
        was activated meanwhile, and may have acknowledged commits.
        """
        with self._lock:
            folder = self.data_directory.folder(timeline)
            if unfinished_only and self.get(timeline).control.active:
                raise TimelineError(
                    f"timeline {timeline} is active: its creation was finished", sqlstate="55000"
                )
            if self.damaged.pop(folder.name, None) is None:
                self.get(timeline).close("it was deleted")
                del self._timelines[timeline]
            self.data_directory.delete(timeline)

    def close(self) -> None:
        """Flush everything and save the hints."""
        for timeline in self.all():
            try:
                timeline.close("the safekeeper is shutting down")
            except StorageError as error:
                log.error("timeline not saved", reason=str(error))


def _written_at(folder: Path) -> int:
    """When its control file was written: within a second of the newest WAL. 0 if unknown."""
    try:
        return (folder / CONTROL_FILE_NAME).stat().st_mtime_ns
    except OSError:
        return 0  # the control file is read next, and reports the error
