"""The contract of every generation service: on SQLite, on Postgres, and over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

import pytest

from quorum_wal.generations.errors import GenerationRefused, RequestInvalid
from quorum_wal.generations.messages import (
    AttachmentMode,
    TenantAttachment,
    TenantGeneration,
    TenantValidity,
    TimelineState,
)
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import ATTACHMENT_GENERATION_MAX, NODE_GENERATION_MAX, Suffix

SINGLE, MULTI, STALE = AttachmentMode.SINGLE, AttachmentMode.MULTI, AttachmentMode.STALE
TIMELINE = "0123456789abcdef" * 2


def is_valid(
    service: GenerationService, node: tuple[int, int], tenant: str, generation: int
) -> bool:
    answer = service.validate(*node, [TenantGeneration(tenant, generation)])
    return answer.is_valid(tenant, generation)


# ---- nodes


def test_each_start_of_a_node_has_a_number_of_its_own(service: GenerationService) -> None:
    assert [service.register_node(3, token_hex(8)).node_generation for _ in range(3)] == [1, 2, 3]
    assert service.register_node(4, "another").node_generation == 1
    assert service.register_node(3, "same").node_generation == 4
    assert service.register_node(3, "same").node_generation == 5


def test_a_restart_returns_the_attachments_of_the_node(
    service: GenerationService, tenant: str
) -> None:
    other = token_hex(16)
    service.attach(tenant, 3)
    service.attach(other, 3)
    service.move(other, 4)
    registration = service.register_node(3, "a")
    assert set(registration.attachments) == {
        TenantAttachment(tenant, 3, 1, SINGLE),
        TenantAttachment(other, 3, 1, STALE),
    }
    (moved,) = service.register_node(4, "b").attachments
    assert moved == TenantAttachment(other, 4, 2, SINGLE)


def test_a_later_process_or_attachment_has_a_greater_suffix(
    service: GenerationService, tenant: str
) -> None:
    suffixes = []
    for node_id in (3, 4, 3):
        service.fence_tenant(tenant, node_id)
        for _ in range(2):
            registration = service.register_node(node_id, "x")
            suffixes.append(registration.suffix(registration.attachments[0]))
    assert suffixes == sorted(set(suffixes))


def test_attachments_of_a_running_process(service: GenerationService, tenant: str) -> None:
    service.register_node(3, "old")
    service.register_node(3, "new")
    assert service.attached(3, 2).attachments == ()
    service.attach(tenant, 3)
    found = service.attached(3, 2)
    assert found.is_node_valid
    assert found.attachments == (TenantAttachment(tenant, 3, 1, SINGLE),)
    assert not service.attached(3, 1).is_node_valid
    assert not service.attached(9, 1).is_node_valid


# ---- validation


def test_a_validation_answers_for_every_tenant(service: GenerationService, tenant: str) -> None:
    elsewhere, unknown = token_hex(16), token_hex(16)
    service.register_node(3, "x")
    service.attach(tenant, 3)
    service.attach(elsewhere, 4)
    asked = [
        TenantGeneration(tenant, 1),
        TenantGeneration(tenant, 0),
        TenantGeneration(tenant, 2),
        TenantGeneration(elsewhere, 1),
        TenantGeneration(unknown, 1),
    ]
    answer = service.validate(3, 1, asked)
    assert answer.is_node_valid
    assert answer.tenants == (
        TenantValidity(tenant, 1, True, SINGLE),
        TenantValidity(tenant, 0, False, SINGLE),
        TenantValidity(tenant, 2, False, SINGLE),
        TenantValidity(elsewhere, 1, False, None),
        TenantValidity(unknown, 1, False, None),
    )
    assert service.validate(3, 1, []).tenants == ()


def test_attachments_of_an_older_process_are_invalid(
    service: GenerationService, tenant: str
) -> None:
    service.attach(tenant, 3)
    service.register_node(3, "old")
    assert is_valid(service, (3, 1), tenant, 1)
    service.register_node(3, "new")
    answer = service.validate(3, 1, [TenantGeneration(tenant, 1)])
    assert not answer.is_node_valid
    assert not answer.tenants[0].is_valid
    assert is_valid(service, (3, 2), tenant, 1)
    assert not service.validate(3, 3, []).is_node_valid
    assert not service.validate(99, 1, []).is_node_valid


def test_a_validation_sees_the_latest_change(service: GenerationService, tenant: str) -> None:
    """There is no cache: each answer comes from the database."""
    service.register_node(3, "x")
    service.attach(tenant, 3)
    for generation in range(1, 6):
        assert is_valid(service, (3, 1), tenant, generation)
        service.attach(tenant, 3)
        assert not is_valid(service, (3, 1), tenant, generation)


# ---- places of tenants


def test_attaching_again_is_a_new_generation(service: GenerationService, tenant: str) -> None:
    assert service.attach(tenant, 3).attachment_generation == 1
    state = service.attach(tenant, 3)
    assert state.current == TenantAttachment(tenant, 3, 2, SINGLE)
    with pytest.raises(GenerationRefused, match="is attached to node 3") as refused:
        service.attach(tenant, 4)
    assert "sk generations move" in refused.value.hint
    assert service.status().tenants[0].attachment_generation == 2


def test_a_move_makes_the_previous_attachment_stale(
    service: GenerationService, tenant: str
) -> None:
    for node_id in (3, 4):
        service.register_node(node_id, "x")
    service.attach(tenant, 3)
    state = service.move(tenant, 4)
    assert state.attachments == (
        TenantAttachment(tenant, 3, 1, STALE),
        TenantAttachment(tenant, 4, 2, SINGLE),
    )
    assert not is_valid(service, (3, 1), tenant, 1)
    assert is_valid(service, (4, 1), tenant, 2)
    answer = service.validate(3, 1, [TenantGeneration(tenant, 1)])
    assert answer.tenants[0].mode is STALE
    with pytest.raises(GenerationRefused, match="already attached to node 4"):
        service.move(tenant, 4)
    assert service.move(tenant, 3).attachments == (
        TenantAttachment(tenant, 3, 3, SINGLE),
        TenantAttachment(tenant, 4, 2, STALE),
    )


def test_multi_ends_when_the_previous_attachment_is_detached(
    service: GenerationService, tenant: str
) -> None:
    service.register_node(5, "x")
    service.attach(tenant, 3)
    service.move(tenant, 4)
    current = service.move(tenant, 5, MULTI).current
    assert current == TenantAttachment(tenant, 5, 3, MULTI)
    assert service.detach(tenant, 3).current == current
    assert service.detach(tenant, 4).attachments == (TenantAttachment(tenant, 5, 3, SINGLE),)
    assert is_valid(service, (5, 1), tenant, 3)  # its number is the same, so it need not restart


def test_invalid_moves_are_refused(service: GenerationService, tenant: str) -> None:
    with pytest.raises(GenerationRefused, match="attached to no node"):
        service.move(tenant, 3)
    service.fence_tenant(tenant)
    with pytest.raises(GenerationRefused, match="attached to no node"):
        service.move(tenant, 3)
    with pytest.raises(RequestInvalid, match="stale"):
        service.move(tenant, 3, STALE)


def test_a_detached_tenant_is_valid_on_no_node(service: GenerationService, tenant: str) -> None:
    service.register_node(3, "x")
    service.attach(tenant, 3)
    assert service.detach(tenant, 9).current is not None  # not attached there is no error
    assert service.detach(tenant, 3).attachments == ()
    assert not is_valid(service, (3, 1), tenant, 1)
    assert service.detach(tenant, 3).attachment_generation == 1
    assert service.attach(tenant, 3).attachment_generation == 2
    with pytest.raises(GenerationRefused, match="does not exist"):
        service.detach(token_hex(16), 3)


def test_a_fence_makes_all_attachments_stale(service: GenerationService, tenant: str) -> None:
    assert service.fence_tenant(tenant).attachment_generation == 1
    service.attach(tenant, 3)
    assert service.fence_tenant(tenant).attachments == (TenantAttachment(tenant, 3, 2, STALE),)
    state = service.fence_tenant(tenant, 4)
    assert state.attachment_generation == 4
    assert state.current == TenantAttachment(tenant, 4, 4, SINGLE)


# ---- the store has a greater number


def test_advance_assigns_only_greater_numbers(service: GenerationService, tenant: str) -> None:
    service.register_node(3, "x")
    service.attach(tenant, 3)
    seen = Suffix.pack(7, 4, 5)
    state = service.advance(tenant, seen)
    assert state.current == TenantAttachment(tenant, 3, 8, SINGLE)
    assert service.register_node(4, "y").node_generation == 6
    assert service.advance(tenant, seen) == state
    assert service.advance(tenant, Suffix.pack(2, 4, 2)) == state
    assert service.register_node(4, "y").node_generation == 7
    assert is_valid(service, (3, 1), tenant, 8)


def test_advance_to_the_last_number_assigns_a_greater_one(
    service: GenerationService, tenant: str
) -> None:
    """Its writer may have got the number before the database was set back."""
    service.attach(tenant, 3)
    assert service.advance(tenant, Suffix.pack(1, 4, 1)).attachment_generation == 2


def test_advance_of_a_tenant_that_is_not_attached(service: GenerationService, tenant: str) -> None:
    assert service.advance(tenant, Suffix.pack(7, 4, 5)).attachments == ()
    assert service.attach(tenant, 3).attachment_generation == 8
    service.fence_tenant(tenant)
    assert service.advance(tenant, Suffix.pack(2, 4, 5)).attachment_generation == 9


def test_an_emergency_claim_keeps_its_number(service: GenerationService, tenant: str) -> None:
    service.attach(tenant, 3)
    claimed = Suffix.pack(2, 4, 9)
    state = service.advance(tenant, claimed, is_own=True)
    assert state.attachments == (
        TenantAttachment(tenant, 3, 1, STALE),
        TenantAttachment(tenant, 4, 2, SINGLE),
    )
    assert is_valid(service, (4, 9), tenant, 2)
    assert service.advance(tenant, claimed, is_own=True) == state
    assert service.register_node(4, "later").node_generation == 10


def test_an_emergency_claim_of_an_assigned_number_is_stale(
    service: GenerationService, tenant: str
) -> None:
    service.attach(tenant, 3)
    service.move(tenant, 5)
    state = service.advance(tenant, Suffix.pack(2, 4, 9), is_own=True)
    assert state.current == TenantAttachment(tenant, 5, 2, SINGLE)
    assert not is_valid(service, (4, 9), tenant, 2)


def test_an_emergency_during_a_move_keeps_multi(service: GenerationService, tenant: str) -> None:
    """The previous attachment still serves reads."""
    service.attach(tenant, 3)
    service.move(tenant, 4, MULTI)
    state = service.advance(tenant, Suffix.pack(3, 4, 9), is_own=True)
    assert state.current == TenantAttachment(tenant, 4, 3, MULTI)
    assert service.detach(tenant, 3).current == TenantAttachment(tenant, 4, 3, SINGLE)


# ---- exhausted numbers


def test_exhausted_numbers_are_refused(service: GenerationService, tenant: str) -> None:
    last = Suffix.pack(ATTACHMENT_GENERATION_MAX, 3, NODE_GENERATION_MAX)
    service.advance(tenant, last)
    for ask in (
        lambda: service.register_node(3, "x"),
        lambda: service.attach(tenant, 3),
        lambda: service.fence_tenant(tenant),
    ):
        with pytest.raises(
            GenerationRefused, match=r"all generations of .* are used: the greatest is 16777215"
        ):
            ask()
    (state,) = service.status().tenants
    assert state.attachment_generation == ATTACHMENT_GENERATION_MAX
    service.register_node(4, "x")


# ---- timelines


def test_a_timeline_is_created_once(service: GenerationService, tenant: str) -> None:
    with pytest.raises(GenerationRefused, match="does not exist"):
        service.create_timeline(tenant, TIMELINE)
    service.attach(tenant, 3)
    assert service.create_timeline(tenant, TIMELINE).suffix == ""  # no process registered yet
    registration = service.register_node(3, "x")
    intent = service.create_timeline(tenant, TIMELINE)
    assert intent.state is TimelineState.CREATED
    assert intent.suffix == str(registration.suffix(registration.attachments[0]))
    service.move(tenant, 4)
    service.register_node(4, "x")
    assert service.create_timeline(tenant, TIMELINE).suffix == str(Suffix.pack(2, 4, 1))


def test_a_deleted_timeline_id_is_not_reused(service: GenerationService, tenant: str) -> None:
    service.attach(tenant, 3)
    service.create_timeline(tenant, TIMELINE)
    for _ in range(2):
        assert service.delete_timeline(tenant, TIMELINE).state is TimelineState.DELETED
        with pytest.raises(GenerationRefused, match="was deleted") as refused:
            service.create_timeline(tenant, TIMELINE)
        assert "new id" in refused.value.hint
    early = token_hex(16)
    service.delete_timeline(tenant, early)
    with pytest.raises(GenerationRefused, match="was deleted"):
        service.create_timeline(tenant, early)
    states = {each.timeline: each.state for each in service.status().timelines}
    assert states == {TIMELINE: TimelineState.DELETED, early: TimelineState.DELETED}


# ---- status and invalid values


def test_status_shows_the_complete_state(service: GenerationService, tenant: str) -> None:
    service.register_node(3, "a pod")
    service.attach(tenant, 3)
    service.detach(tenant, 3)
    status = service.status()
    (node,) = status.nodes
    assert (node.node_id, node.node_generation, node.incarnation) == (3, 1, "a pod")
    assert node.registered_at
    assert [change.operation for change in status.changes] == ["detach", "attach", "register"]


Ask = Callable[[GenerationService], object]

SENSELESS: list[tuple[Ask, str]] = [
    (lambda s: s.register_node(65536, "x"), "invalid node_id 65536"),
    (lambda s: s.register_node(-1, "x"), "invalid node_id -1"),
    (lambda s: s.register_node(1, ""), "invalid incarnation"),
    (lambda s: s.register_node(1, "a\nb"), "invalid incarnation"),
    (lambda s: s.register_node(1, "a" * 65), "invalid incarnation"),
    (lambda s: s.attach("no id", 1), "invalid tenant 'no id'"),
    (lambda s: s.attach("A" * 32, 1), "lower case"),
    (lambda s: s.attach("a" * 32 + "\n", 1), "invalid tenant"),
    (lambda s: s.attach("a" * 32, 1 << 70), "invalid node_id|invalid request"),
    (lambda s: s.attach("a" * 32, 1 << 63), "invalid node_id|invalid request"),
    (lambda s: s.validate(1, 1 << 24, []), "invalid node_generation"),
    (lambda s: s.validate(1, 1, [TenantGeneration("x", 1)]), "invalid tenant"),
    (lambda s: s.validate(1, 1, [TenantGeneration("a" * 32, -1)]), "invalid attachment_generation"),
    (lambda s: s.create_timeline("a" * 32, "'"), "invalid timeline"),
]


def test_invalid_values_change_nothing(service: GenerationService) -> None:
    for ask, text in SENSELESS:
        with pytest.raises(RequestInvalid, match=text):
            ask(service)
    assert service.status().changes == ()
