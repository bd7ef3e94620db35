"""The Postgres database: never a standby, never a commit that a failover may lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import pytest
from postgres_uri import postgres_uri

from quorum_wal.generations import postgres_store
from quorum_wal.generations.errors import (
    GenerationDatabaseError,
    GenerationError,
    GenerationServiceUnavailable,
)
from quorum_wal.generations.messages import TenantGeneration
from quorum_wal.generations.operations import Generations, embedded_generations
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import make_standby, wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 60.0
WAITS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE wait_event = 'SyncRep' AND application_name = 'sk generations'"
)


@pytest.fixture
def generations(postgres_database: str) -> Iterator[Generations]:
    with closing(embedded_generations(postgres_database)) as found:
        yield found


@contextmanager
def synchronous(postgres: Postgres, names: str) -> Iterator[None]:
    postgres.configure(synchronous_standby_names=names)
    try:
        yield
    finally:
        postgres.configure(synchronous_standby_names=None)


@pytest.mark.parametrize(
    "ask",
    [
        lambda g: g.register_node(3, "x"),
        lambda g: g.validate(3, 1, [TenantGeneration("a" * 32, 1)]),
        lambda g: g.attached(3, 1),
    ],
    ids=["register", "validate", "attached"],
)
def test_answers_need_the_confirmation_of_the_standbys(
    generations: Generations, generations_server: Postgres, ask: Callable[[Generations], object]
) -> None:
    """Reads wait, too: a former primary does not know later moves. The COMMIT waits; if the wait is
    cancelled, it returns with a warning, which counts as failed."""
    ended = Event()

    def ask_on() -> None:
        """The setting takes effect when the checkpointer has read it, some time after a reload."""
        while not ended.is_set():
            ask(generations)

    with ThreadPoolExecutor(1) as threads:
        with synchronous(generations_server, "nobody"):
            answers = threads.submit(ask_on)
            try:
                ((pid,),) = wait_until(
                    lambda: generations_server.execute(WAITS), TIMEOUT, "a COMMIT that waits"
                )
            finally:
                ended.set()
            assert not answers.done()
            generations_server.execute("SELECT pg_cancel_backend(%s)", (pid,))
            with pytest.raises(GenerationServiceUnavailable, match="did not confirm the COMMIT"):
                answers.result(TIMEOUT)
        assert ask(generations)


def test_a_standby_is_refused(
    generations: Generations, generations_server: Postgres, tmp_path: Path
) -> None:
    """Not even for reads: it may lag."""
    generations.register_node(3, "x")
    conninfo = generations_server.dsn()
    standby = make_standby(generations_server, tmp_path / "standby", conninfo)
    with standby:
        wait_replayed(standby, generations_server.flush_lsn(), TIMEOUT)
        uri = postgres_uri(standby, generations.store.name.partition(" ")[0])
        with pytest.raises(GenerationServiceUnavailable, match="read-only or a standby") as refused:
            embedded_generations(uri)
    assert "Specify the primary" in refused.value.hint


def test_a_restarted_server_is_used_again(
    postgres_database: str, generations_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "CONNECT_SECONDS", 1)
    with closing(embedded_generations(postgres_database)) as generations:
        assert generations.register_node(3, "x").node_generation == 1
        generations_server.stop()
        with pytest.raises(GenerationServiceUnavailable, match="could not connect to"):
            generations.register_node(3, "x")
        generations_server.start()
        wait_until(lambda: answers(generations), TIMEOUT, "a connection")
        assert generations.register_node(3, "x").node_generation == 2


def answers(generations: Generations) -> bool:
    try:
        return bool(generations.status().nodes)
    except GenerationServiceUnavailable:
        return False


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("postgresql://u:secret@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://u:secret@127.0.0.1:1/x?nonsense=secret", "invalid database URI"),
        ("mysql://u:secret@h/x", "URI of another kind"),
    ],
)
def test_an_unusable_uri_is_refused(uri: str, text: str) -> None:
    with pytest.raises(GenerationError, match=text) as refused:
        embedded_generations(uri)
    assert "secret" not in str(refused.value)


def test_missing_tables_are_created_only_on_request(
    postgres_database: str,
) -> None:
    with pytest.raises(GenerationDatabaseError, match="does not contain generations"):
        embedded_generations(postgres_database, create=False)
    embedded_generations(postgres_database).close()
    embedded_generations(postgres_database, create=False).close()
