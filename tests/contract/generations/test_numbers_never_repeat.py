"""For random sequences of calls: numbers never decrease and never repeat, at most one attachment of
a tenant is valid, and deleted timelines stay deleted. A separate model checks the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorum_wal.generations.errors import GenerationRefused
from quorum_wal.generations.messages import (
    AttachmentMode,
    TenantAttachment,
    TenantGeneration,
    TenantState,
    TimelineState,
)
from quorum_wal.generations.operations import Generations
from quorum_wal.generations.suffix import Suffix

NODES, TENANTS, TIMELINES = 3, 2, 2
EXAMPLES, STEPS = 30, 25

OPERATIONS = [
    *("register", "attach", "move", "multi", "detach", "fence", "unplace", "advance", "own"),
    *("create", "delete"),
]
Step = tuple[str, int, int, int]
STEP = st.tuples(
    st.sampled_from(OPERATIONS),
    st.integers(0, TENANTS - 1),
    st.integers(0, NODES - 1),
    st.integers(0, 12),
)


@dataclass
class World:
    """The numbers assigned so far. Uses new ids each time, because the database is shared."""

    service: Generations
    base: int
    tenants: list[str] = field(default_factory=lambda: [token_hex(16) for _ in range(TENANTS)])
    processes: dict[int, list[int]] = field(default_factory=dict)
    owners: dict[tuple[str, int], int] = field(default_factory=dict)
    greatest: dict[str, int] = field(default_factory=dict)
    deleted: set[tuple[str, str]] = field(default_factory=set)

    def do(self, step: Step) -> None:
        """Refusals are valid answers; `check` compares the state afterwards."""
        name, which, where, number = step
        tenant, node_id = self.tenants[which], self.base + where
        timeline = f"{number % TIMELINES:032x}"
        near = max(0, self.greatest.get(tenant, 0) - 1 + number // 4)
        suffix = Suffix.pack(near, node_id, number)
        try:
            match name:
                case "register":
                    self.register(node_id)
                case "attach":
                    self.learn(self.service.attach(tenant, node_id))
                case "move":
                    self.learn(self.service.move(tenant, node_id))
                case "multi":
                    self.learn(self.service.move(tenant, node_id, AttachmentMode.MULTI))
                case "detach":
                    self.learn(self.service.detach(tenant, node_id))
                case "fence":
                    self.learn(self.service.fence_tenant(tenant, node_id))
                case "unplace":
                    self.learn(self.service.fence_tenant(tenant))
                case "advance":
                    self.advance(tenant, suffix)
                case "own":
                    self.learn(self.service.advance(tenant, suffix, is_own=True))
                    self.processes.setdefault(node_id, []).append(suffix.node_generation)
                case "create":
                    intent = self.service.create_timeline(tenant, timeline)
                    assert (tenant, timeline) not in self.deleted
                    assert intent.state is TimelineState.CREATED
                case _:
                    self.service.delete_timeline(tenant, timeline)
                    self.deleted.add((tenant, timeline))
        except GenerationRefused:
            assert name in ("attach", "move", "multi", "detach", "create", "delete"), step

    def register(self, node_id: int) -> None:
        generation = self.service.register_node(node_id, "x").node_generation
        assert all(generation > before for before in self.processes.get(node_id, []))
        self.processes.setdefault(node_id, []).append(generation)

    def advance(self, tenant: str, suffix: Suffix) -> None:
        state = self.service.advance(tenant, suffix)
        self.learn(state)
        assert state.attachment_generation >= suffix.attachment_generation
        if state.current is not None:
            assert state.current.attachment_generation > suffix.attachment_generation
        self.processes.setdefault(suffix.node_id, []).append(suffix.node_generation)

    def learn(self, state: TenantState) -> None:
        assert state.attachment_generation >= self.greatest.get(state.tenant, 0)
        self.greatest[state.tenant] = state.attachment_generation
        current = [a for a in state.attachments if a.mode is not AttachmentMode.STALE]
        assert len(current) <= 1
        for attachment in state.attachments:
            key = (state.tenant, attachment.attachment_generation)
            assert self.owners.setdefault(key, attachment.node_id) == attachment.node_id
        if current:
            assert current[0].attachment_generation == state.attachment_generation

    def check(self) -> None:
        """Only the current attachment is valid, and only in the newest process of its node."""
        found = {state.tenant: state for state in self.service.status().tenants}
        for tenant in self.tenants:
            current = found[tenant].current if tenant in found else None
            for node_id, processes in self.processes.items():
                self.check_node(tenant, current, node_id, processes)

    def check_node(
        self,
        tenant: str,
        current: TenantAttachment | None,
        node_id: int,
        processes: list[int],
    ) -> None:
        generations = range(self.greatest.get(tenant, 0) + 2)
        asked = [TenantGeneration(tenant, generation) for generation in generations]
        for process in {0, *processes}:
            answer = self.service.validate(node_id, process, asked)
            assert answer.is_node_valid == (process == max(processes))
            for each in answer.tenants:
                place = (node_id, each.attachment_generation)
                is_current = current is not None and place == (
                    current.node_id,
                    current.attachment_generation,
                )
                assert each.is_valid == (is_current and answer.is_node_valid)


@given(st.lists(STEP, min_size=5, max_size=STEPS))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_numbers_never_go_down_and_never_repeat(
    generations: Generations, steps: list[Step]
) -> None:
    world = World(generations, len(generations.status().nodes) * NODES)
    for step in steps:
        world.do(step)
    world.check()
