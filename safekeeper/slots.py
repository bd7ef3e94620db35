"""Physical replication slots of one timeline, and its pageserver: clients that need its WAL.


Laws. A change is on disk before its command is answered. A restart_lsn that a client's flush has
advanced is saved later, by housekeeping, which removes WAL only below the saved position; so is a
pageserver's horizon. A temporary slot is never saved, and is dropped with its session. A lost slot
stays lost: it must be dropped. A pageserver is never lost: it reads removed WAL from the archive.

Source of names, messages and codes: Postgres `replication/slot.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.slots_file import SavedHolders, SavedSlot, decode_slots, encode_slots
from quorum_wal.safekeeper.trim_rule import Trim, check_newest, registered, reported
from quorum_wal.storage import durable

log = structlog.get_logger()

SLOTS_FILE_NAME = "slots"
SLOTS_MAX = 100  # one timeline; each is a row of every status and a line of every save
NAME_BYTES_MAX = 63  # NAMEDATALEN - 1
DROP_WAIT_SECONDS = 60.0

INVALID_NAME = "42602"
DUPLICATE_OBJECT = "42710"
UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"
OBJECT_NOT_IN_PREREQUISITE_STATE = "55000"
CONFIGURATION_LIMIT_EXCEEDED = "53400"

_NAME = re.compile("[a-z0-9_]+")


@dataclass(slots=True)
class Slot:
    """`restart_lsn` 0: no WAL is reserved yet. `holder` is the number of the session that uses it.
    Only `Slots` changes it; any thread may read it."""

    name: str
    restart_lsn: int = 0
    is_lost: bool = False
    is_temporary: bool = False
    holder: int | None = None


class Slots:
    """Thread-safe. `damaged` is the reason why the file could not be read: then no slot can be
    used, and all WAL is kept."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SLOTS_FILE_NAME
        self._changed = Condition()
        self._slots: dict[str, Slot] = {}
        self._saved = SavedHolders()
        #: Of the newest pageserver that ever connected, until it is forgotten.
        self.trim: Trim | None = None
        self.damaged: SafekeeperError | None = None
        try:
            self._saved = decode_slots(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return  # no slot was created yet
        except (SafekeeperError, OSError) as error:
            self.damaged = SafekeeperError(
                str(error), hint=getattr(error, "hint", ""), sqlstate="XX001"
            )
            log.error("slots cannot be used", reason=str(error))
        self._slots = {s.name: Slot(s.name, s.restart_lsn, s.is_lost) for s in self._saved.slots}
        self.trim = self._saved.trim

    # ---- commands

    def find(self, name: str) -> Slot | None:
        self._check_usable()
        return self._slots.get(name)

    def all(self) -> list[Slot]:
        return sorted(self._slots.values(), key=lambda slot: slot.name)

    def create(self, name: str, restart_lsn: int, *, temporary_for: int | None = None) -> Slot:
        """Raises SafekeeperError: 42602, 42710, 53400; StorageError."""
        self._check_usable()
        check_slot_name(name)
        with self._changed:
            if name in self._slots:
                raise SafekeeperError(
                    f'replication slot "{name}" already exists', sqlstate=DUPLICATE_OBJECT
                )
            if len(self._slots) >= SLOTS_MAX:
                raise SafekeeperError(
                    "all replication slots are in use",
                    hint=f"Free one; a timeline of a safekeeper has at most {SLOTS_MAX}.",
                    sqlstate=CONFIGURATION_LIMIT_EXCEEDED,
                )
            slot = Slot(
                name, restart_lsn, is_temporary=temporary_for is not None, holder=temporary_for
            )
            self._save([*self._slots.values(), slot])
            self._slots[name] = slot
        return slot

    def drop(self, name: str, session: int, *, wait: bool = False) -> None:
        """Raises SafekeeperError: 42704, 55006; StorageError."""
        self._check_usable()
        with self._changed:
            slot = self._existing(name)
            if wait:
                self._changed.wait_for(
                    lambda: slot.holder in (None, session), timeout=DROP_WAIT_SECONDS
                )
            self._check_free(slot, session)
            self._save([other for other in self._slots.values() if other is not slot])
            self._slots.pop(name, None)

    def acquire(self, name: str, session: int) -> Slot:
        """For streaming. Raises SafekeeperError: 42704, 55006, 55000."""
        self._check_usable()
        with self._changed:
            slot = self._existing(name)
            self._check_free(slot, session)
            check_not_lost(slot)
            slot.holder = session
        return slot

    def release(self, slot: Slot) -> None:
        """The stream has ended. A temporary slot stays with its session."""
        with self._changed:
            if not slot.is_temporary:
                slot.holder = None
            self._changed.notify_all()

    def end_session(self, session: int) -> None:
        """Drops the temporary slots of the session."""
        with self._changed:
            for slot in self.all():
                if slot.is_temporary and slot.holder == session:
                    del self._slots[slot.name]
                    slot.holder = None
            self._changed.notify_all()

    def advance(self, slot: Slot, flush_lsn: int) -> None:
        """The client has flushed everything below `flush_lsn`; 0 means not reported."""
        with self._changed:
            if not slot.is_lost:
                slot.restart_lsn = max(slot.restart_lsn, flush_lsn)

    # ---- a pageserver

    def register(self, suffix: int) -> None:
        """Saves the pageserver's suffix. Raises SafekeeperError (55006, XX001), StorageError."""
        self._check_usable()
        with self._changed:
            self.trim = self._saved_with(registered(self.trim, suffix))

    def report(self, suffix: int, apply_lsn: int) -> None:
        """The pageserver has made everything below `apply_lsn` durable as pages. Raises
        SafekeeperError (55006) if a newer one has connected."""
        with self._changed:
            if self.trim is not None:
                self.trim = reported(self.trim, suffix, apply_lsn)

    def check_newest(self, suffix: int) -> None:
        """Raises SafekeeperError (55006)."""
        check_newest(self.trim, suffix)

    def forget_pageserver(self) -> None:
        """Raises SafekeeperError (42704, XX001), StorageError."""
        self._check_usable()
        with self._changed:
            if self.trim is None:
                raise SafekeeperError("no pageserver is known here", sqlstate=UNDEFINED_OBJECT)
            self.trim = self._saved_with(None)

    # ---- housekeeping

    def save(self) -> None:
        """Raises StorageError."""
        with self._changed:
            self._save(self._slots.values())

    def oldest(self) -> Slot | None:
        """The slot that needs the oldest WAL."""
        needing = [s for s in self.all() if s.restart_lsn and not s.is_lost]
        return min(needing, key=lambda slot: slot.restart_lsn, default=None)

    def lose_below(self, lsn: int) -> None:
        """WAL below `lsn` will be removed: durably marks slots that need it as lost. Raises
        StorageError."""
        with self._changed:
            for slot in self._slots.values():
                if 0 < slot.restart_lsn < lsn and not slot.is_lost:
                    slot.is_lost = True
                    log.error(
                        "replication slot lost: it held more WAL than --max-slot-wal-keep-size",
                        slot=slot.name,
                        restart_lsn=format_lsn(slot.restart_lsn),
                        removed_below=format_lsn(lsn),
                    )
            self._save(self._slots.values())
            self._changed.notify_all()

    # ---- parts; the caller holds the lock

    def _check_usable(self) -> None:
        if self.damaged is not None:
            raise self.damaged

    def _existing(self, name: str) -> Slot:
        try:
            return self._slots[name]
        except KeyError:
            raise SafekeeperError(
                f'replication slot "{name}" does not exist', sqlstate=UNDEFINED_OBJECT
            ) from None

    def _check_free(self, slot: Slot, session: int) -> None:
        if slot.holder not in (None, session):
            raise SafekeeperError(
                f'replication slot "{slot.name}" is active for session {slot.holder}',
                sqlstate=OBJECT_IN_USE,
            )

    def _save(self, slots: Iterable[Slot]) -> None:
        self._save_holders(slots, self.trim)

    def _saved_with(self, trim: Trim | None) -> Trim | None:
        """Saves `trim` and returns it, so that it is on disk before it is published."""
        self._save_holders(self._slots.values(), trim)
        return trim

    def _save_holders(self, slots: Iterable[Slot], trim: Trim | None) -> None:
        kept = sorted((s for s in slots if not s.is_temporary), key=lambda slot: slot.name)
        saved = SavedHolders(tuple(SavedSlot(s.name, s.restart_lsn, s.is_lost) for s in kept), trim)
        if saved != self._saved and self.damaged is None:
            durable.replace_file(self._path, encode_slots(saved.slots, saved.trim))
            self._saved = saved


def check_slot_name(name: str) -> None:
    """Checks the name as ReplicationSlotValidateName does. Raises SafekeeperError (42602)."""
    if not name:
        raise SafekeeperError(f'replication slot name "{name}" is too short', sqlstate=INVALID_NAME)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise SafekeeperError(f'replication slot name "{name}" is too long', sqlstate=INVALID_NAME)
    if _NAME.fullmatch(name) is None:
        raise SafekeeperError(
            f'replication slot name "{name}" contains invalid character',
            hint="Replication slot names may only contain lower case letters, numbers, and the "
            "underscore character.",
            sqlstate=INVALID_NAME,
        )


def check_not_lost(slot: Slot) -> None:
    """Raises SafekeeperError (55000)."""
    if slot.is_lost:
        raise SafekeeperError(
            f'can no longer access replication slot "{slot.name}": it was invalidated because it '
            "held more WAL than is allowed",
            hint="Drop the slot and create it again; its client may need a new base backup.",
            sqlstate=OBJECT_NOT_IN_PREREQUISITE_STATE,
        )
