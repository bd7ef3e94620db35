"""`ServiceModel`: the generation service of pageserver worlds: one state, which an operator may
reset to an older one; slow, or down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.attachment_events import Mode

if TYPE_CHECKING:
    from .pageserver_world import PageserverWorld


@dataclass(slots=True)
class Tenant:
    generation: int
    node_id: int
    mode: Mode


@dataclass(slots=True)
class State:
    nodes: dict[int, int]
    tenants: dict[bytes, Tenant]
    deleted: set[Any]


class ServiceModel:
    def __init__(self, world: PageserverWorld, node_ids: list[int], tenants: list[bytes]) -> None:
        self._world = world
        nodes = dict.fromkeys(node_ids, 0)
        placed = {
            tenant: Tenant(1, node_ids[number % len(node_ids)], Mode.SINGLE)
            for number, tenant in enumerate(tenants)
        }
        self.state = State(nodes, placed, set())
        self._copy = deepcopy(self.state)
        self.is_down = False
        self.delays_us = (500, 1000, 2000)

    def ask(
        self, do: Callable[[], Any], answered: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        """A transaction and its answer, each with a delay."""
        world, random = self._world, self._world.random
        delay_us = random.choice(self.delays_us)
        if self.is_down or (not world.is_calm and random.random() < 0.03):
            world.clock.call_later(delay_us, failed)
            return

        def transact() -> None:
            if self.is_down:
                failed()
            else:
                world.clock.call_later(random.choice(self.delays_us), answered, do())

        world.clock.call_later(delay_us, transact)

    # ---- transactions

    def register(self, node_id: int) -> tuple[int, dict[bytes, Tenant]]:
        self.state.nodes[node_id] += 1
        tenants = {t: deepcopy(at) for t, at in self.state.tenants.items() if at.node_id == node_id}
        return self.state.nodes[node_id], tenants

    def attached(self, node_id: int) -> dict[bytes, Tenant]:
        return {t: deepcopy(at) for t, at in self.state.tenants.items() if at.node_id == node_id}

    def validate(
        self, node_id: int, node_generation: int, asked: frozenset[tuple[bytes, int]]
    ) -> tuple[bool, Mapping[tuple[bytes, int], bool]]:
        """A tenant that this node does not have is not in the answer."""
        is_node_valid = self.state.nodes[node_id] == node_generation
        answer = {}
        for tenant, generation in asked:
            at = self.state.tenants[tenant]
            if at.node_id == node_id:
                answer[tenant, generation] = is_node_valid and at.generation == generation
        return is_node_valid, answer

    def move(self, tenant: bytes, node_id: int, mode: Mode) -> None:
        at = self.state.tenants[tenant]
        at.generation, at.node_id, at.mode = at.generation + 1, node_id, mode

    def settle(self, tenant: bytes) -> None:
        """The previous attachment serves no reads any more."""
        self.state.tenants[tenant].mode = Mode.SINGLE

    def advance(self, tenant: bytes, suffix: Suffix) -> None:
        """Numbers that are assigned from now on are above."""
        at = self.state.tenants[tenant]
        if suffix.attachment_generation >= at.generation:
            at.generation = suffix.attachment_generation + 1
        self.advance_node(suffix.node_id, suffix.node_generation)

    def advance_own(self, tenant: bytes, suffix: Suffix) -> Tenant:
        """Of a process that has claimed it in an emergency, and keeps it. An attachment that serves
        reads still does: the mode stays."""
        at = self.state.tenants[tenant]
        if suffix.attachment_generation > at.generation:
            at.generation, at.node_id = suffix.attachment_generation, suffix.node_id
        self.advance_node(suffix.node_id, suffix.node_generation)
        return deepcopy(at)

    def advance_node(self, node_id: int, node_generation: int) -> None:
        self.state.nodes[node_id] = max(self.state.nodes[node_id], node_generation)

    def delete_timeline(self, timeline: Any) -> None:
        self.state.deleted.add(timeline)

    # ---- copies

    def take_copy(self) -> None:
        self._copy = deepcopy(self.state)

    def put_back(self) -> None:
        self.state = deepcopy(self._copy)
