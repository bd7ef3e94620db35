"""All timelines of one safekeeper: loaded at the start, created and deleted by command only."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import structlog

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from consensus.messages import ServerFacts
from consensus.term_history import TermHistory
from pgwal.history import TimelineHistory
from pgwal.segment import check_wal_seg_size
from pgwal.versions import wal_version
from safekeeper.archive_progress import ArchiveSettings
from safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from safekeeper.control_state import ControlState, encode_control_state
from safekeeper.data_directory import DataDirectory, no_such_timeline, parse_folder_name
from safekeeper.errors import ControlFileError, TimelineError
from safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from safekeeper.timeline import Timeline
from safekeeper.timeline_hooks import TimelineHooks
from storage import durable
from storage.errors import StorageError

log = structlog.get_logger()


class Timelines:
    """Thread-safe map of the timelines. `damaged` maps a folder to why it could not be opened:
    such a timeline never votes, and the others are served all the same."""

    def __init__(
        self,
        data_directory: DataDirectory,
        hooks: TimelineHooks,
        retention: RetentionPolicy = DEFAULT_RETENTION,
        archive: ArchiveSettings | None = None,
    ) -> None:
        self.data_directory = data_directory
        self._hooks = hooks
        self._retention = retention
        self._archive = archive
        self.damaged: dict[str, str] = {}
        self._lock = Lock()
        self._timelines: dict[TimelineId, Timeline] = {}
        for folder in data_directory.existing():
            self._load(folder)

    def _load(self, folder: Path) -> Timeline | None:
        try:
            if parse_folder_name(folder.name) is None:
                raise ControlFileError(
                    f'"{folder}" does not have the name of a timeline',
                    hint="Give it back the name that it had, or move it out of the data directory.",
                )
            control = ControlFile.read(folder)
            self._check_place(folder, control.state)
        except ControlFileError as error:
            self.damaged[folder.name] = f"{error}. {error.hint}".removesuffix(". ")
            return None
        timeline = Timeline(
            self.data_directory.safekeeper_id,
            folder,
            control,
            self._hooks,
            self._retention,
            self._archive,
        )
        self._timelines[control.state.timeline] = timeline
        return timeline

    def _check_place(self, folder: Path, state: ControlState) -> None:
        """A folder copied under another name would be a second memory of the same promises."""
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
        """Amnesia: a member that forgot its promises must not begin anew under the same id."""
        folder = self.data_directory.folder(timeline)
        if folder.name in self.damaged:
            raise TimelineError(self.damaged[folder.name], sqlstate="XX001")

    def all(self) -> list[Timeline]:
        return list(self._timelines.values())

    def create(
        self,
        timeline: TimelineId,
        server: ServerFacts,
        membership: Membership,
        start_lsn: int,
        history: TimelineHistory,
    ) -> None:
        """The first step of a creation; doing it again with equal facts is fine.

        Raises TimelineError for one that exists with other facts, or was deleted.
        """
        check_wal_seg_size(server.wal_seg_size)
        wal_version(server.pg_major)
        if start_lsn <= 0 or start_lsn % server.wal_seg_size:
            raise TimelineError(f"start {start_lsn:X} is not a segment's start", sqlstate="22023")
        if self.data_directory.safekeeper_id not in membership.all_members:
            raise TimelineError(
                f"safekeeper {self.data_directory.safekeeper_id} is not one of the members "
                f"{membership.all_members}",
                sqlstate="22023",
            )
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
            self._check_not_damaged(timeline)
            if self.data_directory.has_tombstone(timeline):
                raise TimelineError(
                    f"timeline {timeline} was deleted; its name is never used again",
                    hint="Create a timeline with another id.",
                    sqlstate="42710",
                )
            self._write_new(state)

    def _check_same(self, existing: ControlState, wanted: ControlState) -> None:
        facts = ("server", "membership", "timeline_start_lsn")
        if any(getattr(existing, fact) != getattr(wanted, fact) for fact in facts):
            raise TimelineError(
                f"timeline {wanted.timeline} exists already, created with other parameters",
                sqlstate="42710",
            )

    def _write_new(self, state: ControlState) -> None:
        """Built under a temporary name, so that a crash leaves all of it or nothing."""
        folder = self.data_directory.folder(state.timeline)
        temporary = folder.with_name(folder.name + ".tmp")
        durable.make_directory(temporary / "wal")
        durable.replace_file(temporary / CONTROL_FILE_NAME, encode_control_state(state))
        durable.publish_file(temporary, folder)
        self._load(folder)

    def activate(self, timeline: TimelineId) -> None:
        """The second step of a creation. Raises TimelineError, StorageError."""
        with self._lock:
            self.get(timeline).activate()

    def delete(self, timeline: TimelineId, *, unfinished_only: bool = False) -> None:
        """For good. Raises TimelineError, StorageError.

        `unfinished_only` is for who sweeps up after an interrupted creation: it must not hit one
        that was finished, and has acknowledged commits, since he looked.
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
