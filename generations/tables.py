"""Reads and writes the rows of the tables: one function for each statement, without rules."""

from __future__ import annotations

from collections import defaultdict

from quorum_wal.generations.messages import (
    AttachmentMode,
    Change,
    NodeState,
    TenantAttachment,
    TenantState,
    TimelineState,
)
from quorum_wal.generations.schema import CHANGES_MAX
from quorum_wal.generations.store import Transaction

_ATTACHMENT = "tenant, node_id, attachment_generation, mode"


# ---- nodes


def node_generation(transaction: Transaction, node_id: int) -> int | None:
    """The greatest number assigned, or None for an unknown node."""
    rows = transaction.rows("SELECT node_generation FROM nodes WHERE node_id = ?", node_id)
    return rows[0][0] if rows else None


def put_node(transaction: Transaction, node: NodeState) -> None:
    transaction.rows(
        "INSERT INTO nodes (node_id, node_generation, incarnation, registered_at)"
        " VALUES (?, ?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET"
        " node_generation = excluded.node_generation, incarnation = excluded.incarnation,"
        " registered_at = excluded.registered_at",
        node.node_id, node.node_generation, node.incarnation, node.registered_at,
    )  # fmt: skip


def all_nodes(transaction: Transaction) -> tuple[NodeState, ...]:
    rows = transaction.rows(
        "SELECT node_id, node_generation, incarnation, registered_at FROM nodes ORDER BY node_id"
    )
    return tuple(NodeState(*row) for row in rows)


# ---- tenants and where they are attached


def tenant_generation(transaction: Transaction, tenant: str) -> int | None:
    """The greatest number assigned, or None for an unknown tenant."""
    rows = transaction.rows("SELECT attachment_generation FROM tenants WHERE tenant = ?", tenant)
    return rows[0][0] if rows else None


def put_tenant(transaction: Transaction, tenant: str, attachment_generation: int) -> None:
    transaction.rows(
        "INSERT INTO tenants (tenant, attachment_generation) VALUES (?, ?)"
        " ON CONFLICT (tenant) DO UPDATE SET"
        " attachment_generation = excluded.attachment_generation",
        tenant, attachment_generation,
    )  # fmt: skip


def all_tenants(transaction: Transaction) -> tuple[TenantState, ...]:
    attachments = defaultdict(list)
    listed = f"SELECT {_ATTACHMENT} FROM attachments ORDER BY tenant, node_id"
    for row in transaction.rows(listed):
        attachments[row[0]].append(_attachment(*row))
    rows = transaction.rows("SELECT tenant, attachment_generation FROM tenants ORDER BY tenant")
    return tuple(
        TenantState(tenant, generation, tuple(attachments[tenant])) for tenant, generation in rows
    )


def attachments_of_tenant(transaction: Transaction, tenant: str) -> tuple[TenantAttachment, ...]:
    rows = transaction.rows(
        f"SELECT {_ATTACHMENT} FROM attachments WHERE tenant = ? ORDER BY node_id", tenant
    )
    return tuple(_attachment(*row) for row in rows)


def attachments_of_node(transaction: Transaction, node_id: int) -> tuple[TenantAttachment, ...]:
    rows = transaction.rows(
        f"SELECT {_ATTACHMENT} FROM attachments WHERE node_id = ? ORDER BY tenant", node_id
    )
    return tuple(_attachment(*row) for row in rows)


def put_attachment(transaction: Transaction, attachment: TenantAttachment) -> None:
    transaction.rows(
        f"INSERT INTO attachments ({_ATTACHMENT}) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (tenant, node_id) DO UPDATE SET"
        " attachment_generation = excluded.attachment_generation, mode = excluded.mode",
        attachment.tenant, attachment.node_id, attachment.attachment_generation,
        attachment.mode.value,
    )  # fmt: skip


def delete_attachment(transaction: Transaction, tenant: str, node_id: int) -> None:
    transaction.rows("DELETE FROM attachments WHERE tenant = ? AND node_id = ?", tenant, node_id)


def make_all_stale(transaction: Transaction, tenant: str) -> None:
    transaction.rows("UPDATE attachments SET mode = 'stale' WHERE tenant = ?", tenant)


def _attachment(
    tenant: str, node_id: int, attachment_generation: int, mode: str
) -> TenantAttachment:
    return TenantAttachment(tenant, node_id, attachment_generation, AttachmentMode(mode))


# ---- timelines


def timeline_state(transaction: Transaction, tenant: str, timeline: str) -> TimelineState | None:
    rows = transaction.rows(
        "SELECT state FROM timelines WHERE tenant = ? AND timeline = ?", tenant, timeline
    )
    return TimelineState(rows[0][0]) if rows else None


def put_timeline(
    transaction: Transaction, tenant: str, timeline: str, state: TimelineState
) -> None:
    transaction.rows(
        "INSERT INTO timelines (tenant, timeline, state) VALUES (?, ?, ?)"
        " ON CONFLICT (tenant, timeline) DO UPDATE SET state = excluded.state",
        tenant, timeline, state.value,
    )  # fmt: skip


def all_timelines(transaction: Transaction) -> list[tuple[str, str, TimelineState]]:
    rows = transaction.rows(
        "SELECT tenant, timeline, state FROM timelines ORDER BY tenant, timeline"
    )
    return [(tenant, timeline, TimelineState(state)) for tenant, timeline, state in rows]


# ---- changes


def add_change(
    transaction: Transaction,
    changed_at: str,
    operation: str,
    tenant: str = "",
    node_id: int | None = None,
    generation: int | None = None,
) -> None:
    """Adds a change and deletes the oldest ones."""
    ((last,),) = transaction.rows("SELECT coalesce(max(number), 0) FROM changes")
    transaction.rows(
        "INSERT INTO changes (number, changed_at, operation, tenant, node_id, generation)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        last + 1, changed_at, operation, tenant, node_id, generation,
    )  # fmt: skip
    transaction.rows("DELETE FROM changes WHERE number <= ?", last + 1 - CHANGES_MAX)


def last_changes(transaction: Transaction, count_max: int) -> tuple[Change, ...]:
    rows = transaction.rows(
        "SELECT number, changed_at, operation, tenant, node_id, generation FROM changes"
        " ORDER BY number DESC LIMIT ?",
        count_max,
    )
    return tuple(Change(*row) for row in rows)
