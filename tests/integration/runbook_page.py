"""docs/runbook.md as tests read it: its entries, their parts, and the commands in them.

### BLOCKED                   an entry: level 3, below a section of level 2
**Means** ...                 a part: its name in bold at the beginning of a paragraph
    systemctl start ...       a block of commands: indented lines up to the next other line
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/runbook.md"
#: The parts of each entry, in this order.
PARTS = ["Means", "At risk", "Do", "Until"]

_HEADING = re.compile(r"^(##+) (.+)$")
_PART = re.compile(r"^\*\*(Means|At risk|Do|Until)\*\*", re.MULTILINE)
_LINK = re.compile(r"\]\(#([^)]+)\)")
_VARIABLE = re.compile(r"\$\{?([A-Z_]+)")
_INDENT = "    "


def anchor_of(heading: str) -> str:
    """The anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Entry:
    """The text below a heading, up to the next one. `section` is the heading of level 2."""

    heading: str
    section: str
    text: str

    @property
    def blocks(self) -> list[list[str]]:
        """The blocks of commands, without indentation and comments."""
        found: list[list[str]] = [[]]
        for line in self.text.splitlines():
            if line.startswith(_INDENT):
                found[-1].append(re.split(r"\s+# ", line)[0].strip())
            elif found[-1]:
                found.append([])
        return [block for block in found if block]

    @property
    def commands(self) -> list[str]:
        return [line for block in self.blocks for line in block]

    @property
    def parts(self) -> list[str]:
        return _PART.findall(self.text)

    @property
    def answers(self) -> list[str]:
        """The anchors that this entry links to on its page."""
        return _LINK.findall(self.text)

    @property
    def variables(self) -> set[str]:
        return {name for line in self.commands for name in _VARIABLE.findall(line)}


def read_entries() -> dict[str, Entry]:
    """By heading, in the order of the page; a section is an entry, too."""
    found: dict[str, Entry] = {}
    section, heading, lines = "", "", list[str]()

    def close() -> None:
        assert heading not in found, f"{heading} has two entries"
        if heading:
            found[heading] = Entry(heading, section, "\n".join(lines))

    for line in PAGE.read_text().splitlines():
        if match := _HEADING.match(line):
            close()
            heading, lines = match[2], []
            section = heading if match[1] == "##" else section
        else:
            lines.append(line)
    close()
    return found
