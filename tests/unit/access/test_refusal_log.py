"""The log of refused requests: each refusal is logged, but repetitions do not fill the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from quorum_wal.access.refusal_log import (
    LINES_MAX,
    REFUSALS_MAX,
    SAME_SECONDS_MIN,
    TEXT_CHARACTERS_MAX,
    RefusalLog,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(refusals: RefusalLog, client: str, reason: str) -> list[dict[str, object]]:
    with capture_logs() as lines:
        refusals.note("refused", client, command="START_WAL_PUSH", reason=reason)
    return [dict(line) for line in lines]


def test_an_equal_refusal_is_logged_once_a_minute_with_its_count() -> None:
    clock = Clock()
    refusals = RefusalLog(clock)
    assert said(refusals, "10.0.0.1:40000", "stopped") == [
        {
            "event": "refused",
            "log_level": "warning",
            "client": "10.0.0.1:40000",
            "command": "START_WAL_PUSH",
            "reason": "stopped",
        }
    ]
    for port in range(40001, 40120):
        clock.now += SAME_SECONDS_MIN / 120
        assert not said(refusals, f"10.0.0.1:{port}", "stopped")
    clock.now = SAME_SECONDS_MIN
    (line,) = said(refusals, "10.0.0.1:41000", "stopped")
    assert line["times"] == 120
    assert not said(refusals, "10.0.0.1:41001", "stopped")
    assert refusals.count == 122


def test_another_client_and_another_reason_are_logged_at_once() -> None:
    refusals = RefusalLog(Clock())
    assert said(refusals, "10.0.0.1:40000", "stopped")
    assert said(refusals, "10.0.0.2:40000", "stopped")
    assert said(refusals, "10.0.0.1:40001", "damaged")
    assert not said(refusals, "10.0.0.1:40002", "stopped")


def test_the_oldest_refusal_is_forgotten_first() -> None:
    refusals = RefusalLog(Clock())
    for number in range(REFUSALS_MAX + 1):
        assert said(refusals, f"{number}:40000", "stopped")
    assert not said(refusals, "1:40000", "stopped")
    assert said(refusals, "0:40000", "stopped")
    assert said(refusals, "2:40000", "stopped"), "the oldest one, when 0 came back"


def test_a_client_that_invents_names_does_not_fill_the_disk() -> None:
    clock = Clock()
    refusals = RefusalLog(clock)

    def lines(host: str) -> int:
        count = 0
        for number in range(2 * LINES_MAX):
            for line in said(refusals, f"{host}:1", f"no user {number} {'x' * 10_000}"):
                count += 1
                assert len(str(line["reason"])) <= TEXT_CHARACTERS_MAX
        return count

    assert [lines("10.0.0.1"), lines("10.0.0.1"), lines("10.0.0.2")] == [LINES_MAX, 0, LINES_MAX]
    clock.now += SAME_SECONDS_MIN
    assert lines("10.0.0.1") == LINES_MAX
    assert refusals.count == 8 * LINES_MAX
