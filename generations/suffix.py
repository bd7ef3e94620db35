"""The suffix of an object name: identifies the attachment and the process that wrote it. Pure.

    63                   40 39          24 23                    0
    | attachment generation |   node id   |   node generation     |     000007000300001A
    | 24 bits               |   16 bits   |   24 bits             |     7, 3, 26

Laws. A suffix belongs permanently to one attachment of one process. The greater number is the newer
one. An attachment of a later generation is greater than all earlier ones, on any node. Within an
attachment, which has one node, a later process is greater. Other code only compares suffixes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorum_wal.generations.errors import GenerationError

ATTACHMENT_GENERATION_MAX = (1 << 24) - 1
NODE_ID_MAX = (1 << 16) - 1
NODE_GENERATION_MAX = (1 << 24) - 1

_ATTACHMENT_SHIFT = 40
_NODE_SHIFT = 24
_VALUE_END = 1 << 64
_TEXT = re.compile(r"[0-9A-F]{16}\Z")


@dataclass(frozen=True, slots=True, order=True)
class Suffix:
    """`format` and `parse` are inverse to each other."""

    value: int

    def __post_init__(self) -> None:
        assert 0 <= self.value < _VALUE_END, self.value

    @classmethod
    def pack(cls, attachment_generation: int, node_id: int, node_generation: int) -> Suffix:
        """Raises GenerationError if a value is out of range."""
        _check("attachment generation", attachment_generation, ATTACHMENT_GENERATION_MAX)
        _check("node id", node_id, NODE_ID_MAX)
        _check("node generation", node_generation, NODE_GENERATION_MAX)
        return cls(
            attachment_generation << _ATTACHMENT_SHIFT | node_id << _NODE_SHIFT | node_generation
        )

    @property
    def attachment_generation(self) -> int:
        return self.value >> _ATTACHMENT_SHIFT

    @property
    def node_id(self) -> int:
        return self.value >> _NODE_SHIFT & NODE_ID_MAX

    @property
    def node_generation(self) -> int:
        return self.value & NODE_GENERATION_MAX

    def format(self) -> str:
        """16 hex digits in upper case, so that texts sort as the numbers do."""
        return f"{self.value:016X}"

    def __str__(self) -> str:
        return self.format()

    @classmethod
    def parse(cls, text: str) -> Suffix:
        """Raises GenerationError."""
        if _TEXT.match(text) is None:
            raise GenerationError(
                f"invalid suffix {text[:80]!r}: expected 16 hex digits in upper case"
            )
        return cls(int(text, 16))


def _check(what: str, number: int, number_max: int) -> None:
    if not 0 <= number <= number_max:
        raise GenerationError(f"invalid {what} {number}: expected 0 to {number_max}")
