"""The picture of a cluster: boxes in columns, and lines between them. Pure.

    primary ── proposer ─┬─ safekeeper 1 ─┬─ replica
                         ├─ safekeeper 2  └─ archive        wide: columns from left to right
                         └─ safekeeper 3

On a phone the columns are set one below the other (`tall`), and the lines run at the left edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorum_wal.telemetry.page.tone import Tone

BOX_HEIGHT, GAP = 68, 16
WIDE_BOX, WIDE_GAP = 208, 44
TALL_BOX, TALL_INDENT = 300, 28
MARGIN = 4
#: Of the fonts in the style sheet, so many fit into a box.
NAME_CHARACTERS_MAX = 23
LINE_CHARACTERS_MAX = 27
BULGE = 36


@dataclass(frozen=True, slots=True)
class Node:
    """`state` is a word or two beside the sign of `tone`; `detail` is one more line."""

    key: str
    name: str
    state: str
    tone: Tone
    detail: str = ""

    @property
    def title(self) -> str:
        """All of it, for a pointer that rests on it, and for readers of the screen."""
        return ", ".join(part for part in (self.name, self.state, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Link:
    """From the node that has the WAL to the one that gets it; `title` says what it is."""

    source: str
    target: str
    tone: Tone
    title: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    columns: tuple[tuple[Node, ...], ...]
    links: tuple[Link, ...]

    @property
    def title(self) -> str:
        nodes = [node.title for column in self.columns for node in column]
        return "The cluster: " + "; ".join(nodes)


@dataclass(frozen=True, slots=True)
class Box:
    """A node at its place; texts cut to what fits."""

    node: Node
    x: float
    y: float
    width: float
    name: str
    state: str
    detail: str
    height: float = BOX_HEIGHT

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Curve:
    path: str
    link: Link


@dataclass(frozen=True, slots=True)
class Drawing:
    kind: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]


#: The path from one box to another.
Draw = Callable[[Box, Box], str]


def wide(picture: Picture) -> Drawing:
    """Columns from left to right, each in the middle of the height."""
    columns = [column for column in picture.columns if column]
    height = max((_stack_height(len(column)) for column in columns), default=0)
    boxes = [
        _box(node, MARGIN + number * (WIDE_BOX + WIDE_GAP), top + MARGIN, WIDE_BOX)
        for number, column in enumerate(columns)
        for node, top in zip(column, _tops(len(column), height), strict=True)
    ]
    width = len(columns) * WIDE_BOX + max(0, len(columns) - 1) * WIDE_GAP
    return _drawing("wide", width, height, boxes, picture.links, _across)


def tall(picture: Picture) -> Drawing:
    """All boxes one below the other."""
    nodes = [node for column in picture.columns for node in column]
    boxes = [
        _box(node, TALL_INDENT, MARGIN + number * (BOX_HEIGHT + GAP), TALL_BOX)
        for number, node in enumerate(nodes)
    ]
    depths = {node.key: d for d, column in enumerate(picture.columns) for node in column}

    def rail(source: Box, target: Box) -> str:
        x = TALL_INDENT - 8 - 7 * (depths[source.node.key] % 3)
        return f"M{source.x} {source.middle + 8}H{x}V{target.middle}H{target.x}"

    width = TALL_INDENT + TALL_BOX
    return _drawing("tall", width, _stack_height(len(nodes)), boxes, picture.links, rail)


def _drawing(
    kind: str, width: float, height: float, boxes: Sequence[Box], links: Sequence[Link], draw: Draw
) -> Drawing:
    by_key = {box.node.key: box for box in boxes}
    curves = tuple(
        Curve(draw(by_key[link.source], by_key[link.target]), link)
        for link in links
        if link.source in by_key and link.target in by_key
    )
    return Drawing(kind, width + 2 * MARGIN, height + 2 * MARGIN, tuple(boxes), curves)


def _stack_height(count: int) -> float:
    return count * BOX_HEIGHT + max(0, count - 1) * GAP


def _tops(count: int, height: float) -> list[float]:
    begin = (height - _stack_height(count)) / 2
    return [begin + number * (BOX_HEIGHT + GAP) for number in range(count)]


def _across(source: Box, target: Box) -> str:
    if source.x == target.x:
        x = source.x + source.width
        return (
            f"M{x} {source.middle}C{x + BULGE} {source.middle} {x + BULGE} {target.middle} "
            f"{x} {target.middle}"
        )
    begin, end = source.x + source.width, target.x
    bend = (begin + end) / 2
    return (
        f"M{begin} {source.middle}C{bend} {source.middle} {bend} {target.middle} "
        f"{end} {target.middle}"
    )


def _box(node: Node, x: float, y: float, width: float) -> Box:
    extra = 14 if width > WIDE_BOX else 0
    return Box(
        node,
        x,
        y,
        width,
        _cut(node.name, NAME_CHARACTERS_MAX + extra),
        _cut(node.state, LINE_CHARACTERS_MAX - 3 + extra),
        _cut(node.detail, LINE_CHARACTERS_MAX + extra),
    )


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
