"""`QsyncBook`: what clients of qsync were told, what readers saw, and what does not fit. Pure.

A transaction is named by its client and number; each inserts one row of that name. Laws:

    SEEN_LOST           a row that anybody has seen is there ever after
    COMMITTED_LOST      so is one whose client was told that it is committed
    GONE_APPEARS        what was told to be rolled back, or not begun, never appears
    TWO_ANSWERS         nobody is told two different ends of one transaction
    UNKNOWN_ROW         no row is of a transaction that nobody has begun

Law of reading: who compares takes a `mark` before he asks the server, and compares what the server
said with that: rows that came in between are no fault of the server.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from threading import Lock

Name = tuple[int, int]

COMMITTED, ROLLED_BACK, PENDING = "committed", "rolled_back", "pending"
NEVER = "never"  # refused, or failed before its PREPARE
UNKNOWN = "unknown"  # OUTCOME cannot tell, and a look at the table must
WATCHED_MAX = 300
FINAL = {COMMITTED: COMMITTED, ROLLED_BACK: ROLLED_BACK, NEVER: ROLLED_BACK}


@dataclass(frozen=True, slots=True)
class Mark:
    """What must exist from now on."""

    seen: frozenset[Name]
    committed: frozenset[Name]


@dataclass(slots=True)
class QsyncBook:
    """For any thread."""

    gids: dict[Name, str] = field(default_factory=dict)
    #: Upper bounds of the end of PREPARE, if the client knew one.
    lsns: dict[Name, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    _ends: dict[Name, str] = field(default_factory=dict)
    _open: dict[Name, str] = field(default_factory=dict)
    _gone: deque[Name] = field(default_factory=lambda: deque(maxlen=WATCHED_MAX))
    _told_by_clients: set[Name] = field(default_factory=set)
    _begun: list[Name] = field(default_factory=list)
    _answers: Counter[str] = field(default_factory=Counter)
    _seen: set[Name] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    # ---- reports

    def begun(self, name: Name, gid: str) -> None:
        """It is about to be prepared."""
        with self._lock:
            self.gids[name] = gid
            self._begun.append(name)
            if name not in self._ends:
                self._open[name] = gid

    def told(self, name: Name, answer: str, lsn: int = 0, *, by_client: bool = False) -> None:
        """Reported by the client's package, or by OUTCOME."""
        with self._lock:
            if lsn and answer == PENDING:
                self.lsns[name] = lsn
            if answer not in FINAL:
                return
            if by_client:
                self._told_by_clients.add(name)
            end = FINAL[answer]
            self._answers[answer] += name not in self._ends
            before = self._ends.setdefault(name, end)
            self._open.pop(name, None)
            if end == ROLLED_BACK:
                self._gone.append(name)
            if before != end:
                self._violate("TWO_ANSWERS", {name}, f"{before}, then {end}")
            if end == ROLLED_BACK and name in self._seen:
                self._violate("GONE_APPEARS", {name}, "seen before it was told")

    def saw(self, names: Iterable[Name]) -> None:
        """Rows on any server, also a deposed one: it must not have shown rows that may be lost."""
        with self._lock:
            new = set(names) - self._seen
            self._seen |= new
            gone = {name for name in new if self._ends.get(name) == ROLLED_BACK}
            self._violate("GONE_APPEARS", gone, "seen after it was told")

    # ---- rows that must exist

    def mark(self) -> Mark:
        with self._lock:
            return Mark(frozenset(self._seen), frozenset(self._named(COMMITTED)))

    def compare(self, mark: Mark, present: Set[Name], where: str) -> None:
        """`present`: all rows of the leading server, read after the mark."""
        self.saw(present)
        with self._lock:
            self._violate("SEEN_LOST", mark.seen - present, where)
            self._violate("COMMITTED_LOST", mark.committed - mark.seen - present, where)

    # ---- the rest

    def reckon(self) -> None:
        """When everything that clients have begun is in the book."""
        with self._lock:
            self._violate("UNKNOWN_ROW", self._seen - set(self.gids))

    def undecided(self) -> dict[Name, str]:
        """Possibly prepared, and without a reported end."""
        with self._lock:
            return dict(self._open)

    def watched(self) -> list[Name]:
        """Rows that may appear late, or must not appear: undecided ones, and recently rolled back
        ones."""
        with self._lock:
            return [*list(self._open)[-WATCHED_MAX:], *self._gone]

    def take_begun(self) -> tuple[list[Name], list[Name]]:
        """Those begun since the last call, in two parts: reported as committed, and others."""
        with self._lock:
            begun, self._begun = self._begun, []
            committed = [name for name in begun if self._ends.get(name) == COMMITTED]
        return committed, [name for name in begun if name not in set(committed)]

    def count(self, answer: str) -> int:
        """The number of those whose first final answer was that."""
        with self._lock:
            return self._answers[answer]

    @property
    def orphans_count(self) -> int:
        """Those whose client has reported no end."""
        with self._lock:
            return len(self.gids.keys() - self._told_by_clients)

    @property
    def seen_count(self) -> int:
        return len(self._seen)

    def violate(self, law: str, text: str) -> None:
        """A violation that another part has detected."""
        with self._lock:
            self.violations.append(f"{law}: {text}")

    def _named(self, end: str) -> set[Name]:
        return {name for name, told in self._ends.items() if told == end}

    def _violate(self, law: str, names: Set[Name], text: str = "") -> None:
        for name in sorted(names):
            gid = self.gids.get(name, "no gid")
            self.violations.append(f"{law}: {name}, {gid}, {text}")
