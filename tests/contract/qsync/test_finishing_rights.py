"""The rights to finish a prepared transaction: its owner or a superuser, in its own database."""

from __future__ import annotations

import pytest
from two_phase import (
    NOT_ALLOWED,
    OTHER_DATABASE,
    UNKNOWN_GID,
    commit_sql,
    limbo,
    prepare,
    prepare_sql,
    rollback_sql,
    sqlstate_of,
)

from quorum_wal.pg_fixtures.postgres import Postgres

ROLES = ("app", "janitor", "stranger")


@pytest.fixture(scope="module")
def server_with_roles(shared_server: Postgres) -> Postgres:
    for role in ROLES:
        shared_server.execute(f"CREATE ROLE {role} LOGIN")
    shared_server.execute("GRANT app TO janitor")
    shared_server.execute("CREATE TABLE of_app (a int)")
    shared_server.execute("ALTER TABLE of_app OWNER TO app")
    return shared_server


@pytest.fixture
def prepared(server: Postgres, server_with_roles: Postgres) -> Postgres:
    """`g` is prepared, by app."""
    with server.connect(user="app") as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO of_app VALUES (1)")
        connection.execute(prepare_sql("g"))
    return server


def test_its_owner_and_a_superuser_may_finish_it(prepared: Postgres) -> None:
    prepared.execute(commit_sql("g"), user="app")
    prepare(prepared, "h")
    assert sqlstate_of(lambda: prepared.execute(commit_sql("h"), user="app")) == NOT_ALLOWED
    prepared.execute(commit_sql("h"))
    assert limbo(prepared) == set()


def test_a_member_of_its_owner_may_after_set_role_only(prepared: Postgres) -> None:
    with prepared.connect(user="janitor") as connection:
        for statement in (commit_sql("g"), rollback_sql("g")):
            assert sqlstate_of(lambda s=statement: connection.execute(s)) == NOT_ALLOWED
        connection.execute("SET ROLE app")
        connection.execute(commit_sql("g"))
    assert limbo(prepared) == set()


def test_a_role_that_is_no_member_may_not_set_role(prepared: Postgres) -> None:
    with prepared.connect(user="stranger") as connection:
        assert sqlstate_of(lambda: connection.execute("SET ROLE app")) == NOT_ALLOWED
        assert sqlstate_of(lambda: connection.execute(commit_sql("g"))) == NOT_ALLOWED
    assert limbo(prepared) == {"g"}


def test_every_role_sees_its_owner_and_its_database(prepared: Postgres) -> None:
    rows = prepared.execute("SELECT gid, owner, database FROM pg_prepared_xacts", user="stranger")
    assert rows == [("g", "app", "postgres")]


def test_it_is_finished_from_its_own_database_only(prepared: Postgres) -> None:
    """The error names it nevertheless: a gid is unique in the whole server."""
    refused = sqlstate_of(lambda: prepared.execute(commit_sql("g"), dbname="template1"))
    assert refused == OTHER_DATABASE
    assert sqlstate_of(lambda: prepared.execute(commit_sql("nobody's"))) == UNKNOWN_GID
    assert limbo(prepared) == {"g"}


def test_an_owner_that_was_dropped_is_null_and_a_superuser_finishes_it(server: Postgres) -> None:
    """Postgres drops a role even if a transaction of it is prepared."""
    server.execute("CREATE ROLE leaver LOGIN")
    with server.connect(user="leaver") as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(prepare_sql("g"))
    server.execute("DROP ROLE leaver")
    assert server.execute("SELECT owner FROM pg_prepared_xacts") == [(None,)]
    server.execute(commit_sql("g"))
    assert limbo(server) == set()


def test_no_block_may_be_open(server: Postgres) -> None:
    """A setting before it in the same message opens an implicit one: it must be sent in its own
    message, or with the connection."""
    prepare(server, "g")
    with server.connect() as connection:
        connection.execute("BEGIN")
        assert sqlstate_of(lambda: connection.execute(commit_sql("g"))) == "25001"
        connection.execute("ROLLBACK")
        both = "SET synchronous_commit = local; COMMIT PREPARED 'g'"
        assert sqlstate_of(lambda: connection.execute(both)) == "25001"
    assert limbo(server) == {"g"}
