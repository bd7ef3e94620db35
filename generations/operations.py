"""The rules by which numbers are assigned from a database. `protocol.py` documents the operations.

Laws. A number is read, incremented and written in one transaction, and returned after its COMMIT.
The place of a tenant's attachment changes only together with its number. No state is cached,
because an old answer must not justify a delete. (`returned_numbers.py` can only make an answer
negative.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from quorum_wal.generations import tables
from quorum_wal.generations.errors import GenerationRefused, RequestInvalid
from quorum_wal.generations.messages import (
    AttachmentMode,
    GenerationStatus,
    NodeAttachments,
    NodeRegistration,
    NodeState,
    TenantAttachment,
    TenantGeneration,
    TenantState,
    TenantValidity,
    TimelineIntent,
    TimelineState,
    Validation,
)
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.returned_numbers import LowerBounds, ReturnedNumbers
from quorum_wal.generations.store import Store, Transaction, Work, open_store
from quorum_wal.generations.suffix import (
    ATTACHMENT_GENERATION_MAX,
    NODE_GENERATION_MAX,
    NODE_ID_MAX,
    Suffix,
)

INCARNATION_CHARACTERS_MAX = 64
STATUS_CHANGES_MAX = 20

_ID = re.compile(r"[0-9a-f]{32}\Z")

Clock = Callable[[], datetime]


def embedded_generations(database: str, *, create: bool = True) -> Generations:
    """The service within this process, on its own database: a path or a Postgres URI.

    Raises GenerationDatabaseError, GenerationServiceUnavailable.
    """
    return Generations(open_store(database, create=create), lambda: datetime.now(UTC))


class Generations(GenerationService):
    """`clock` is used for the change log only."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._returned = ReturnedNumbers()

    def close(self) -> None:
        self.store.close()

    # ---- for pageservers

    def register_node(self, node_id: int, incarnation: str) -> NodeRegistration:
        _check_node(node_id)
        _check_incarnation(incarnation)
        now, bounds = self._now(), self._returned.bounds()

        def work(transaction: Transaction) -> NodeRegistration:
            before = tables.node_generation(transaction, node_id) or 0
            generation = bounds.greatest(_node(node_id), before) + 1
            _check_not_exhausted(_node(node_id), generation, NODE_GENERATION_MAX)
            tables.put_node(transaction, NodeState(node_id, generation, incarnation, now))
            tables.add_change(transaction, now, "register", "", node_id, generation)
            attachments = tables.attachments_of_node(transaction, node_id)
            return NodeRegistration(node_id, generation, attachments)

        registration = self.store.write(work)
        self._returned.note(_node(node_id), registration.node_generation)
        return registration

    def attached(self, node_id: int, node_generation: int) -> NodeAttachments:
        _check_node(node_id)
        _check_number("node_generation", node_generation, NODE_GENERATION_MAX)

        bounds = self._returned.bounds()

        def work(transaction: Transaction) -> NodeAttachments:
            is_newest = _is_newest(transaction, bounds, node_id, node_generation)
            attachments = tables.attachments_of_node(transaction, node_id)
            return NodeAttachments(node_id, node_generation, is_newest, attachments)

        return self.store.read(work)

    def validate(
        self, node_id: int, node_generation: int, tenants: Iterable[TenantGeneration]
    ) -> Validation:
        asked = tuple(tenants)
        _check_node(node_id)
        _check_number("node_generation", node_generation, NODE_GENERATION_MAX)
        for each in asked:
            _check_id("tenant", each.tenant)
            number = each.attachment_generation
            _check_number("attachment_generation", number, ATTACHMENT_GENERATION_MAX)

        bounds = self._returned.bounds()

        def work(transaction: Transaction) -> Validation:
            is_newest = _is_newest(transaction, bounds, node_id, node_generation)
            attachments = tables.attachments_of_node(transaction, node_id)
            found = {a.tenant: a for a in attachments if _is_in_bounds(bounds, a)}
            validities = (_validity(each, found.get(each.tenant), is_newest) for each in asked)
            return Validation(node_id, node_generation, is_newest, tuple(validities))

        return self.store.read(work)

    def create_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        return self._name_timeline(tenant, timeline, TimelineState.CREATED)

    def delete_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        return self._name_timeline(tenant, timeline, TimelineState.DELETED)

    def _name_timeline(self, tenant: str, timeline: str, wanted: TimelineState) -> TimelineIntent:
        _check_id("tenant", tenant)
        _check_id("timeline", timeline)
        now = self._now()

        def work(transaction: Transaction) -> TimelineIntent:
            state = _known_tenant(transaction, tenant)
            found = tables.timeline_state(transaction, tenant, timeline)
            if found is TimelineState.DELETED and wanted is TimelineState.CREATED:
                raise GenerationRefused(
                    f"timeline {timeline} of tenant {tenant} was deleted",
                    hint="Ids are never reused. Create a timeline with a new id.",
                )
            if found is not wanted:
                tables.put_timeline(transaction, tenant, timeline, wanted)
                tables.add_change(transaction, now, f"timeline {wanted.value}", tenant)
            process = None
            if (current := state.current) is not None:
                process = tables.node_generation(transaction, current.node_id)
            return _intent(state, process, timeline, wanted)

        return self.store.write(work)

    # ---- for administrators

    def attach(self, tenant: str, node_id: int) -> TenantState:
        def check(state: TenantState | None) -> None:
            current = state.current if state is not None else None
            if current is not None and current.node_id != node_id:
                raise GenerationRefused(
                    f"tenant {tenant} is attached to node {current.node_id}",
                    hint="Use sk generations move, or sk generations fence.",
                )

        return self._place(tenant, node_id, AttachmentMode.SINGLE, "attach", check)

    def move(
        self, tenant: str, node_id: int, mode: AttachmentMode = AttachmentMode.SINGLE
    ) -> TenantState:
        if mode is AttachmentMode.STALE:
            raise RequestInvalid('expected mode "single" or "multi" for a move, found "stale"')

        def check(state: TenantState | None) -> None:
            current = state.current if state is not None else None
            if current is None:
                raise GenerationRefused(
                    f"tenant {tenant} is attached to no node", hint="Use sk generations attach."
                )
            if current.node_id == node_id:
                raise GenerationRefused(f"tenant {tenant} is already attached to node {node_id}")

        return self._place(tenant, node_id, mode, "move", check)

    def fence_tenant(self, tenant: str, node_id: int | None = None) -> TenantState:
        return self._place(tenant, node_id, AttachmentMode.SINGLE, "fence", lambda _: None)

    def _place(
        self,
        tenant: str,
        node_id: int | None,
        mode: AttachmentMode,
        operation: str,
        check: Callable[[TenantState | None], None],
    ) -> TenantState:
        """The only function that changes the place of an attachment, and so assigns its number."""
        _check_id("tenant", tenant)
        if node_id is not None:
            _check_node(node_id)
        now, bounds = self._now(), self._returned.bounds()

        def work(transaction: Transaction) -> TenantState:
            state = _tenant_state(transaction, tenant)
            check(state)
            found = state.attachment_generation if state is not None else 0
            generation = bounds.greatest(_tenant(tenant), found) + 1
            _place_at(transaction, tenant, node_id, generation, mode)
            tables.add_change(transaction, now, operation, tenant, node_id, generation)
            return _known_tenant(transaction, tenant)

        return self._changed(work)

    def detach(self, tenant: str, node_id: int) -> TenantState:
        _check_id("tenant", tenant)
        _check_node(node_id)
        now = self._now()

        def work(transaction: Transaction) -> TenantState:
            state = _known_tenant(transaction, tenant)
            leaving = [a for a in state.attachments if a.node_id == node_id]
            if leaving:
                tables.delete_attachment(transaction, tenant, node_id)
                _end_multi(transaction, tenant)
                generation = leaving[0].attachment_generation
                tables.add_change(transaction, now, "detach", tenant, node_id, generation)
            return _known_tenant(transaction, tenant)

        return self.store.write(work)

    def advance(self, tenant: str, suffix: Suffix, *, is_own: bool = False) -> TenantState:
        _check_id("tenant", tenant)
        now, bounds = self._now(), self._returned.bounds()

        def work(transaction: Transaction) -> TenantState:
            _advance_node(transaction, suffix, now)
            state = _tenant_state(transaction, tenant)
            found = state.attachment_generation if state is not None else 0
            before = bounds.greatest(_tenant(tenant), found)
            current = state.current if state is not None else None
            seen = suffix.attachment_generation
            if is_own and seen > before:
                # After a move with MULTI, the previous attachment still serves reads.
                mode = AttachmentMode.SINGLE if current is None else current.mode
                _place_at(transaction, tenant, suffix.node_id, seen, mode)
            elif not is_own and current is not None and max(seen + 1, before) > found:
                above = max(seen, before) + 1
                _place_at(transaction, tenant, current.node_id, above, current.mode)
            else:
                tables.put_tenant(transaction, tenant, max(seen, before))
            after = _known_tenant(transaction, tenant)
            if after != state:
                number = after.attachment_generation
                tables.add_change(transaction, now, "advance", tenant, suffix.node_id, number)
            return after

        return self._changed(work)

    def _changed(self, work: Work[TenantState]) -> TenantState:
        state = self.store.write(work)
        self._returned.note(_tenant(state.tenant), state.attachment_generation)
        return state

    def status(self) -> GenerationStatus:
        def work(transaction: Transaction) -> GenerationStatus:
            nodes, tenants = tables.all_nodes(transaction), tables.all_tenants(transaction)
            processes = {node.node_id: node.node_generation for node in nodes}
            states = {state.tenant: state for state in tenants}
            timelines = []
            for tenant, timeline, state in tables.all_timelines(transaction):
                current = states[tenant].current
                process = None if current is None else processes.get(current.node_id)
                timelines.append(_intent(states[tenant], process, timeline, state))
            return GenerationStatus(
                nodes=nodes,
                tenants=tenants,
                timelines=tuple(timelines),
                changes=tables.last_changes(transaction, STATUS_CHANGES_MAX),
            )

        return self.store.read(work)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")


# ---- parts of a transaction


def _tenant_state(transaction: Transaction, tenant: str) -> TenantState | None:
    generation = tables.tenant_generation(transaction, tenant)
    if generation is None:
        return None
    return TenantState(tenant, generation, tables.attachments_of_tenant(transaction, tenant))


def _known_tenant(transaction: Transaction, tenant: str) -> TenantState:
    """Raises GenerationRefused."""
    state = _tenant_state(transaction, tenant)
    if state is None:
        raise GenerationRefused(
            f"tenant {tenant} does not exist", hint="Create it with sk generations attach."
        )
    return state


def _is_newest(
    transaction: Transaction, bounds: LowerBounds, node_id: int, node_generation: int
) -> bool:
    """Confirmed only by the database, and only if the database is not older than `bounds`."""
    newest = tables.node_generation(transaction, node_id) or 0
    return bounds.greatest(_node(node_id), newest) == newest == node_generation


def _is_in_bounds(bounds: LowerBounds, attachment: TenantAttachment) -> bool:
    """A stale attachment needs no check."""
    number = attachment.attachment_generation
    is_stale = attachment.mode is AttachmentMode.STALE
    return is_stale or bounds.greatest(_tenant(attachment.tenant), number) == number


def _validity(
    asked: TenantGeneration, found: TenantAttachment | None, is_newest: bool
) -> TenantValidity:
    """An unknown attachment is invalid."""
    is_valid = (
        is_newest
        and found is not None
        and found.mode is not AttachmentMode.STALE
        and found.attachment_generation == asked.attachment_generation
    )
    mode = None if found is None else found.mode
    return TenantValidity(asked.tenant, asked.attachment_generation, is_valid, mode)


def _place_at(
    transaction: Transaction,
    tenant: str,
    node_id: int | None,
    generation: int,
    mode: AttachmentMode,
) -> None:
    """`generation` must be greater than all before. All other attachments become stale."""
    _check_not_exhausted(_tenant(tenant), generation, ATTACHMENT_GENERATION_MAX)
    tables.put_tenant(transaction, tenant, generation)
    tables.make_all_stale(transaction, tenant)
    if node_id is not None:
        attachment = TenantAttachment(tenant, node_id, generation, mode)
        tables.put_attachment(transaction, attachment)


def _end_multi(transaction: Transaction, tenant: str) -> None:
    """Sets MULTI to SINGLE when no stale attachment is left that may serve reads."""
    attachments = tables.attachments_of_tenant(transaction, tenant)
    if len(attachments) == 1 and attachments[0].mode is AttachmentMode.MULTI:
        (last,) = attachments
        single = TenantAttachment(
            tenant, last.node_id, last.attachment_generation, AttachmentMode.SINGLE
        )
        tables.put_attachment(transaction, single)


def _advance_node(transaction: Transaction, suffix: Suffix, now: str) -> None:
    before = tables.node_generation(transaction, suffix.node_id)
    if before is None or before < suffix.node_generation:
        node = NodeState(suffix.node_id, suffix.node_generation, "", "")
        tables.put_node(transaction, node)
        tables.add_change(
            transaction, now, "advance node", "", suffix.node_id, suffix.node_generation
        )


def _intent(
    tenant: TenantState, process: int | None, timeline: str, state: TimelineState
) -> TimelineIntent:
    """`process`: node generation of the process that has the tenant, or None."""
    current, suffix = tenant.current, ""
    if current is not None and process is not None:
        suffix = str(Suffix.pack(current.attachment_generation, current.node_id, process))
    return TimelineIntent(tenant.tenant, timeline, state, tenant.attachment_generation, suffix)


def _node(node_id: int) -> str:
    return f"node {node_id}"


def _tenant(tenant: str) -> str:
    return f"tenant {tenant}"

    # ---- checks of request values


def _check_id(what: str, text: str) -> None:
    if _ID.match(text) is None:
        raise RequestInvalid(f"invalid {what} {text[:80]!r}: expected 32 hex digits in lower case")


def _check_node(node_id: int) -> None:
    _check_number("node_id", node_id, NODE_ID_MAX)


def _check_number(what: str, number: int, number_max: int) -> None:
    if not 0 <= number <= number_max:
        raise RequestInvalid(f"invalid {what} {str(number)[:40]}: expected 0 to {number_max}")


def _check_incarnation(text: str) -> None:
    if not text.isprintable() or not 1 <= len(text) <= INCARNATION_CHARACTERS_MAX:
        raise RequestInvalid(
            f"invalid incarnation: expected 1 to {INCARNATION_CHARACTERS_MAX} printable characters"
        )


def _check_not_exhausted(whose: str, generation: int, generation_max: int) -> None:
    """Numbers never start again."""
    if generation > generation_max:
        raise GenerationRefused(
            f"all generations of {whose} are used: the greatest is {generation_max}",
            hint="Use a new id. Generations never start again.",
        )
