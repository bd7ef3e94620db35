"""`sk elect` does not wait forever."""

from __future__ import annotations

from threading import Event

import pytest
from new_timeline import first_membership

from quorum_wal.cli import elect
from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

CONFIG = ProposerConfig(PrimaryAddress(""), ())
FOUND = FoundTimeline(
    TimelineId(bytes(16), bytes(16)), ServerFacts(7, 150018, 16 << 20), first_membership(1, 2, 3)
)


def test_an_election_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Event()

    def elect_forever(*_: object) -> int:
        over.wait()
        return 0

    monkeypatch.setattr(elect, "run_election", elect_forever)
    with pytest.raises(CommandError, match="no quorum answered within") as error:
        elect.elect_within(0.01, CONFIG, FOUND)
    assert error.value.exit_code == ExitCode.UNREACHABLE
    over.set()


def test_the_outcome_of_an_election_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elect, "run_election", lambda *_: 0x2000000)
    assert elect.elect_within(10.0, CONFIG, FOUND) == 0x2000000

    def refuse(*_: object) -> int:
        raise Refusal("fenced")

    monkeypatch.setattr(elect, "run_election", refuse)
    with pytest.raises(Refusal, match="fenced"):
        elect.elect_within(10.0, CONFIG, FOUND)
