"""The runbook has an entry for each verdict and each alert, and `sk` accepts its commands."""

from __future__ import annotations

import ast
import re
import shlex

import click
import pytest
from prometheus_server import ROOT, rules_by_name
from runbook_page import PARTS, Entry, anchor_of, read_entries

from quorum_wal.cli.main import cli
from quorum_wal.cluster.verdict import Condition, Verdict

ENTRIES = read_entries()
VERDICTS, ALERTS = "Verdicts", "Alerts"
SETTINGS = "Set these first"
#: Values of the variables, for the parsers of our options.
VALUES = {
    "SAFEKEEPERS": "sk1:5454,sk2:5454,sk3:5454",
    "ID": "2",
    "NODE": "2",
    "NEWADDR": "sk4:5454",
    "TIMELINE": "a0" * 16 + "/" + "b0" * 16,
    "TENANT": "a0" * 16,
    "COORDINATOR": "proposer:5455",
    "PAGESERVER": "ps1:7680",
    "SERVICE": "http://generations:7670",
    "ARCHIVE": "s3://bucket/prefix",
    "DSN": "host=pg1 dbname=postgres",
    "STANDBY": "host=pg2 dbname=postgres",
    "PGDATA": str(ROOT),
    "FILE": "base/5/16384",
    "BLOCK": "7",
}


def below(section: str) -> list[Entry]:
    """The entries of the sections whose heading begins so."""
    found = [entry for entry in ENTRIES.values() if entry.section.startswith(section)]
    return [entry for entry in found if entry.heading != entry.section]


INCIDENTS = [*below(VERDICTS), *below(ALERTS)]
#: An anchor belongs to one heading.
ANCHORS = {anchor_of(heading): entry for heading, entry in ENTRIES.items()}


def test_each_verdict_and_each_alert_has_an_entry_and_nothing_else_has_one() -> None:
    assert {entry.heading for entry in below(VERDICTS)} == {each.value for each in Condition}
    assert {entry.heading for entry in below(ALERTS)} == rules_by_name().keys()


@pytest.mark.parametrize("name", rules_by_name())
def test_the_runbook_url_of_an_alert_leads_to_its_entry(name: str) -> None:
    file, _, anchor = rules_by_name()[name]["annotations"]["runbook_url"].partition("#")
    assert file == "docs/runbook.md"
    assert ANCHORS[anchor].heading == name


@pytest.mark.parametrize("condition", Condition)
def test_a_verdict_leads_to_its_entry(condition: Condition) -> None:
    file, _, anchor = Verdict(condition, "").runbook.partition("#")
    if condition is Condition.OK:
        assert file == ""
    else:
        assert (file, ANCHORS[anchor].heading) == ("docs/runbook.md", condition.value)


@pytest.mark.parametrize("entry", INCIDENTS, ids=lambda entry: entry.heading)
def test_an_entry_has_all_parts_or_leads_to_one_that_has(entry: Entry) -> None:
    if entry.parts != ["Means"]:
        assert entry.parts == PARTS
        return
    assert entry.commands == []
    answers = [ANCHORS[anchor] for anchor in entry.answers]
    assert any(answer.parts == PARTS or answer not in INCIDENTS for answer in answers)


def test_the_links_of_the_page_lead_to_headings() -> None:
    assert len(ANCHORS) == len(ENTRIES)
    for entry in ENTRIES.values():
        for anchor in entry.answers:
            assert anchor in ANCHORS, f"{entry.heading} leads to #{anchor}"
        for file, anchor in re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", entry.text):
            headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / file).read_text(), re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{entry.heading} leads to {file}#{anchor}"


def test_other_pages_lead_to_headings_of_the_runbook() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for anchor in re.findall(r"runbook\.md#([a-z-]+)\)", page.read_text()):
            assert anchor in ANCHORS, f"{page.name} leads to runbook.md#{anchor}"


def test_the_page_sets_each_variable_that_its_commands_use() -> None:
    exports = [re.match(r"export ([A-Z]+)=", line) for line in ENTRIES[SETTINGS].commands]
    used = set().union(*(e.variables for e in ENTRIES.values() if e.heading != SETTINGS))
    assert {found[1] for found in exports if found} == used


def words_of(package: str) -> str:
    """All texts in the code of a package."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / package).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))


def test_sk_status_has_the_words_that_the_page_quotes() -> None:
    texts = words_of("cluster") + words_of("walproposer")
    rows = re.findall(r"^\| (`.*) \| ", ENTRIES["DEGRADED"].text, re.MULTILINE)
    quoted = [words for row in rows for words in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 10
    assert [words for words in quoted if words not in texts] == []


OURS = sorted({c for e in ENTRIES.values() for c in e.commands if c.startswith("sk ")})


@pytest.mark.parametrize("line", OURS)
def test_sk_accepts_the_command(line: str) -> None:
    """Its name, its options and the form of their values; it is not run."""
    for name, value in VALUES.items():
        line = line.replace(f'"${name}"', shlex.quote(value))
    _, *words = shlex.split(line)
    assert "$" not in line
    command: click.Command = cli
    context = click.Context(cli, info_name="sk")
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    with command.make_context(command.name, words):
        pass
