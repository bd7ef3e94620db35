"""`PageStore`: the object store of pageserver worlds. Requests arrive late, twice, or not at all.

    request -> (lost) -> lands -> (again, much later) -> answer -> (lost)

Every request takes effect as a whole, except a list, whose second half may be read later than its
first. The caller gets an answer, or an error; a request that failed may take effect long
afterwards. Objects are values; every fourth seed encodes and decodes each one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pageserver.objects.deletion_list import (
    DeletionList,
    QueueHeader,
    decode_claim,
    decode_header,
    decode_list,
    encode_claim,
    encode_header,
    encode_list,
)
from quorum_wal.pageserver.objects.page_index import PageIndex, decode_index, encode_index
from quorum_wal.pageserver.objects.page_keys import PageKeys, QueueKeys

if TYPE_CHECKING:
    from .pageserver_world import PageserverWorld

N = TypeVar("N")

#: The difference of the store's clock, which is ahead of all others.
CLOCK_AHEAD_MS = 7_000
#: For a request whose caller does not wait any more.
LATE_US = (5_000, 40_000, 150_000)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`writer` is the incarnation that created it."""

    name: Any
    content: Any
    modified_ms: int
    writer: str


class PageStore:
    """Keys by folder: `pages/` of a timeline, `deletion/` of a node."""

    def __init__(self, world: PageserverWorld) -> None:
        self._world = world
        self.pages: dict[TimelineId, dict[str, StoredObject]] = {}
        self.queues: dict[int, dict[str, StoredObject]] = {}
        self._takes_bytes = world.seed % 4 == 0

    # ---- the effects of requests

    def create(self, folder: Any, name: Any, content: Any, writer: str) -> StoredObject:
        """Returns the object after the request."""
        objects, text = self.folder(folder), name.format()
        found = objects.get(text)
        if found is None:
            parse = PageKeys(folder).parse if isinstance(folder, TimelineId) else None
            parse = parse or QueueKeys(folder).parse
            key = (PageKeys if isinstance(folder, TimelineId) else QueueKeys)(folder).prefix + text
            assert parse(key) == name, key
            content = through_bytes(content) if self._takes_bytes else content
            found = objects[text] = StoredObject(name, content, self.now_ms, writer)
            self._world.laws.created(folder, found)
        else:
            self._world.laws.created_again(folder, found, content, writer)
        return found

    def get(self, folder: Any, name: Any) -> Any:
        """Its content, or None."""
        found = self.folder(folder).get(name.format())
        return None if found is None else found.content

    def delete(self, folder: Any, text: str) -> None:
        objects = self.folder(folder)
        if text in objects:
            found = objects.pop(text)
            self._world.laws.deleted(folder, found)

    def delete_key(self, key: str) -> None:
        for timeline in self._world.timelines:
            prefix = PageKeys(timeline).prefix
            if key.startswith(prefix):
                self.delete(timeline, key.removeprefix(prefix))

    def list(self, folder: Any, above: str = "") -> list[StoredObject]:
        objects = self.folder(folder)
        return [objects[text] for text in sorted(objects) if text > above]

    def folder(self, folder: Any) -> dict[str, StoredObject]:
        if isinstance(folder, TimelineId):
            return self.pages.setdefault(folder, {})
        return self.queues.setdefault(folder, {})

    @property
    def now_ms(self) -> int:
        return self._world.clock.now_us // 1000 + CLOCK_AHEAD_MS

    # ---- requests

    def ask(
        self,
        land: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[], None],
        *,
        is_write: bool,
    ) -> None:
        """`land` happens in the store; then one of the callbacks, or neither if the caller has
        ended."""
        world, random, call_later = self._world, self._world.random, self._world.clock.call_later
        delay_us = random.choice(world.request_us)
        if is_write and not world.is_calm and random.random() < world.chance_of_copies:
            world.count("store: copied")
            call_later(random.choice(LATE_US), self._land, land, ignored)
        if world.is_calm or random.random() >= world.chance_of_fault:
            call_later(delay_us, self._land, land, answered)
            return
        fault = random.choice(("lost", "unanswered", "late", "late", "doubled", "slow", "unheard"))
        world.count(f"store: {fault}")
        late_us = random.choice(LATE_US)
        match fault:
            case "lost":
                call_later(2 * delay_us, failed)
            case "unanswered":
                call_later(delay_us, self._land, land, ignored)
                call_later(2 * delay_us, failed)
            case "late":
                call_later(2 * delay_us, failed)
                call_later(late_us, self._land, land, ignored)
            case "doubled":
                call_later(delay_us, self._land, land, answered)
                call_later(late_us, self._land, land, ignored)
            case "slow":
                call_later(late_us, self._land, land, answered)
            case "unheard":
                heard = lambda answer: call_later(late_us, answered, answer)  # noqa: E731
                call_later(delay_us, self._land, land, heard)

    def _land(self, land: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        answer = land()
        self._world.clock.call_later(
            self._world.random.choice(self._world.request_us), answered, answer
        )

    def ask_list(
        self,
        folder: Any,
        answered: Callable[[list[StoredObject]], None],
        failed: Callable[[], None],
        above: str = "",
    ) -> None:
        """Half of the lists have two pages, with time between."""
        random = self._world.random
        if random.random() < 0.5:
            self.ask(lambda: self.list(folder, above), answered, failed, is_write=False)
            return

        def second(first: list[StoredObject]) -> None:
            last = first[-1].name.format() if first else above
            rest = lambda: first + self.list(folder, last)  # noqa: E731
            self.ask(rest, answered, failed, is_write=False)

        def half() -> list[StoredObject]:
            found = self.list(folder, above)
            return found[: len(found) // 2]

        self.ask(half, second, failed, is_write=False)


def ignored(_: Any) -> None:
    """The answer to a request whose caller has given up."""


def through_bytes(content: Any) -> Any:
    """The object as a reader decodes it."""
    match content:
        case PageIndex():
            return decode_index(encode_index(content), "index")
        case DeletionList():
            return decode_list(encode_list(content), "list")
        case QueueHeader():
            return decode_header(encode_header(content), "header")
        case str():
            return decode_claim(encode_claim(content), "claim")
        case _:
            return content
