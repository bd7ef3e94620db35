"""The verbs of the coordinator's port: valid commands, and the errors of others."""

from __future__ import annotations

import pytest

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.errors import CommandSyntaxError
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync.answers import ROW_OF, columns_of
from quorum_wal.walproposer.qsync.verb_roles import ROLES
from quorum_wal.walproposer.qsync.verbs import (
    RESOLVE_TIMEOUT_MS,
    WORDS,
    Admit,
    AskOutcome,
    Barrier,
    Resolve,
    ShowList,
    ShowStatus,
    Verb,
    WaitLsn,
    parse_statement,
    parse_verb,
)

TEXT = "skq1.d.19c1f0a3e55.2-16b374d848-2f1-1.019c1f0a3e557b2c8d0e4f6a7b8c9d0e"
GID = Gid.parse(TEXT)
LSN = int(Lsn.parse("16/B374D848"))

UNDERSTOOD: list[tuple[str, Verb]] = [
    ("ADMIT", Admit()),
    (" admit ; ", Admit()),
    ("WAIT_LSN 16/B374D848 TIMEOUT 5000", WaitLsn(LSN, 5000)),
    (f"wait_lsn 16/b374d848 timeout 0 gid '{TEXT}';", WaitLsn(LSN, 0, GID)),
    ("BARRIER 16/B374D848 TIMEOUT 1", Barrier(LSN, 1)),
    ("BARRIER 16/B374D848 TIMEOUT 1 TLI 2 START 17955", Barrier(LSN, 1, (2, 17955))),
    (f"OUTCOME '{TEXT}'", AskOutcome(GID)),
    (f"OUTCOME '{TEXT}' LSN 16/B374D848", AskOutcome(GID, LSN)),
    ("QSYNC_STATUS", ShowStatus()),
    ("QSYNC_LIST", ShowList()),
    (f"RESOLVE '{TEXT}' COMMIT", Resolve(GID, True, RESOLVE_TIMEOUT_MS)),
    (f"RESOLVE '{TEXT}' ROLLBACK TIMEOUT 7", Resolve(GID, False, 7)),
]


@pytest.mark.parametrize(("text", "verb"), UNDERSTOOD)
def test_a_verb_is_understood(text: str, verb: Verb) -> None:
    assert parse_verb(text) == verb
    assert parse_statement(text) == (verb, 0)


def test_every_verb_has_a_word_a_role_and_columns() -> None:
    types = {type(verb) for _, verb in UNDERSTOOD}
    assert types == set(WORDS) == set(ROLES) == set(ROW_OF)
    for verb in types:
        assert columns_of(verb)
        assert any(text.upper().strip().startswith(WORDS[verb]) for text, _ in UNDERSTOOD)


@pytest.mark.parametrize(
    ("text", "sqlstate", "position", "sentence"),
    [
        ("SELECT 1", "42601", 1, 'syntax error at or near "SELECT": expected a verb'),
        ("'ADMIT'", "42601", 1, "expected a verb"),
        ("ADMIT 1", "42601", 7, "expected the end of the command"),
        ("ADMIT; ADMIT", "42601", 8, "expected the end of the command"),
        ("WAIT_LSN", "42601", 9, "syntax error at end of input: expected an LSN"),
        ("WAIT_LSN 16/B374D848", "42601", 21, "end of input: expected TIMEOUT"),
        ("WAIT_LSN 1/123456789 TIMEOUT 1", "42601", 10, "expected an LSN"),
        ("WAIT_LSN 1/1 TIMEOUT -1", "42601", 22, 'near "-": expected milliseconds'),
        ("WAIT_LSN 1/1 TIMEOUT 1.5", "42601", 23, 'near "."'),
        ("WAIT_LSN 1/1 TIMEOUT 2147483648", "22023", 22, '"2147483648" is out of range'),
        (f"WAIT_LSN 1/1 TIMEOUT {'9' * 5000}", "22023", 22, "is out of range"),
        ("WAIT_LSN 1/1 TIMEOUT 1 GID x", "42601", 28, "expected a gid in quotes"),
        ("WAIT_LSN 1/1 TIMEOUT 1 GID 'x'", "22023", 28, "invalid gid 'x'"),
        ("OUTCOME 'pg_gid_16389_748'", "22023", 9, "invalid gid"),
        ("OUTCOME 'x", "42601", 9, "expected a closing quote"),
        (f"RESOLVE '{TEXT}'", "42601", len(TEXT) + 11, "expected COMMIT or ROLLBACK"),
        (f"RESOLVE '{TEXT}' FORGET", "42601", len(TEXT) + 12, "expected COMMIT or ROLLBACK"),
        ("WAIT_LSN $1 TIMEOUT 1", "22023", 10, "there is no parameter $1"),
        ("WAIT_LSN $0 TIMEOUT 1", "22023", 10, "there is no parameter $0"),
        ("WAIT_LSN $9 TIMEOUT 1", "22023", 10, "there is no parameter $9"),
    ],
)
def test_what_is_no_verb_is_refused(text: str, sqlstate: str, position: int, sentence: str) -> None:
    with pytest.raises(CommandSyntaxError) as caught:
        parse_verb(text)
    assert (caught.value.sqlstate, caught.value.position) == (sqlstate, position)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "hint"),
    [("BEGIN", "Connect with autocommit"), ("SHOW port", "runs no SQL"), ("1", "runs no SQL")],
)
def test_sql_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(CommandSyntaxError) as caught:
        parse_verb(text)
    assert hint in (caught.value.hint or "")


def test_parameters_stand_for_values() -> None:
    text = "WAIT_LSN $2 TIMEOUT $1 GID $3"
    assert parse_verb(text, ["5", "16/B374D848", TEXT]) == WaitLsn(LSN, 5, GID)
    verb, parameters = parse_statement(text)
    assert isinstance(verb, WaitLsn)
    assert parameters == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["1/1", None], "parameter $2 is null"),
        (["1/1"], "there is no parameter $2"),
        (["x", "1"], '"x" is not an LSN'),
        (["1/1", "1; RESOLVE"], "is out of range: expected milliseconds"),
        (["1/1", "\u0661"], "is out of range"),  # a digit, but not one of ours
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: list[str | None], sentence: str) -> None:
    with pytest.raises(CommandSyntaxError) as caught:
        parse_verb("WAIT_LSN $1 TIMEOUT $2", values)
    assert caught.value.sqlstate == "22023"
    assert sentence in str(caught.value)
