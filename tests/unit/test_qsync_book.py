"""The book of the soak of qsync sees every broken law, and no other."""

from __future__ import annotations

from tests.soak.qsync_book import COMMITTED, NEVER, PENDING, ROLLED_BACK, QsyncBook

A, B, C = (1, 1), (1, 2), (2, 1)
WHERE = "timeline 2"


def book_of(*names: tuple[int, int]) -> QsyncBook:
    book = QsyncBook()
    for name in names:
        book.begun(name, f"gid {name}")
    return book


def laws(book: QsyncBook) -> list[str]:
    return [violation.partition(":")[0] for violation in book.violations]


def test_a_healthy_cluster_is_ok() -> None:
    book = book_of(A, B, C)
    book.told(A, PENDING, 7)
    book.told(A, COMMITTED)
    book.told(A, COMMITTED)
    book.told(B, ROLLED_BACK)
    book.told(B, NEVER)
    book.saw({A})
    mark = book.mark()
    book.saw({C})  # after the mark: not yet there for who asked before
    book.compare(mark, {A}, WHERE)
    book.reckon()
    assert book.violations == []
    assert book.undecided() == {C: f"gid {C}"}
    assert book.lsns == {A: 7}
    assert (book.count(COMMITTED), book.count(ROLLED_BACK), book.seen_count) == (1, 1, 2)


def test_a_row_that_was_seen_is_lost() -> None:
    book = book_of(A, B)
    book.saw({A, B})
    book.compare(book.mark(), {B}, WHERE)
    assert laws(book) == ["SEEN_LOST"]
    assert str(A) in book.violations[0]


def test_a_row_that_was_said_to_be_committed_is_lost() -> None:
    book = book_of(A)
    book.told(A, COMMITTED)
    book.compare(book.mark(), set(), WHERE)
    assert laws(book) == ["COMMITTED_LOST"]


def test_what_was_gone_appears() -> None:
    for answer in (ROLLED_BACK, NEVER):
        before, after = book_of(A), book_of(A)
        before.told(A, answer)
        before.compare(before.mark(), {A}, WHERE)
        after.saw({A})
        after.told(A, answer)
        assert laws(before) == laws(after) == ["GONE_APPEARS"]


def test_two_answers() -> None:
    for first, second in ((COMMITTED, ROLLED_BACK), (ROLLED_BACK, COMMITTED), (NEVER, COMMITTED)):
        book = book_of(A)
        book.told(A, first, by_client=True)
        book.told(A, second)
        assert laws(book) == ["TWO_ANSWERS"]


def test_rows_that_come_late_or_must_not_come_are_watched() -> None:
    book = book_of(A, B, C)
    book.told(A, COMMITTED)
    book.told(B, ROLLED_BACK)
    book.told(C, PENDING)
    assert sorted(book.watched()) == [B, C]


def test_those_begun_are_taken_once() -> None:
    book = book_of(A, B, C)
    book.told(A, COMMITTED)
    book.told(B, ROLLED_BACK)
    assert book.take_begun() == ([A], [B, C])
    assert book.take_begun() == ([], [])


def test_orphans_are_those_without_a_reported_end() -> None:
    book = book_of(A, B, C)
    book.told(A, COMMITTED, by_client=True)
    book.told(B, COMMITTED)
    book.told(C, PENDING, by_client=True)
    assert book.orphans_count == 2


def test_a_row_of_no_known_transaction() -> None:
    book = book_of(A)
    book.saw({A, B})
    book.reckon()
    assert laws(book) == ["UNKNOWN_ROW"]
