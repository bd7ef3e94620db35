"""Golden scripts: the protocol played against the real cores, message by message.

A block is a command, `----`, and its output. `pytest tests/interaction --rewrite` writes the
present output; then review the difference as carefully as code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from script import Script

from tests.simulation.broken_law import BrokenLaw
from tests.simulation.bugs_of_safekeeper import answer_before_the_fsync
from tests.simulation.limits import small_segments
from tests.simulation.planting import planted

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def replay(text: str) -> str:
    """The same script with the outputs of today. Blocks are separated by empty lines; a block of
    comments only is kept as it is."""
    script = Script()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("----")[0].strip().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if line and not line.startswith("#")]
        output = [script.run(command) for command in commands]
        written = "\n".join(filter(None, output))
        parts = [*comments, *commands, *(["----", written] if written else [])]
        blocks.append("\n".join(parts))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    with small_segments():
        actual = replay(expected)
    if request.config.getoption("--rewrite"):
        path.write_text(actual)
        return
    assert actual == expected, f"pytest {path.parent.parent} --rewrite shows the difference"


def test_the_invariants_are_checked_after_every_step_of_a_script() -> None:
    with small_segments(), planted(answer_before_the_fsync), pytest.raises(BrokenLaw) as broken:
        replay(SCRIPTS[0].read_text())
    assert broken.value.law == "Durable"
