"""The page as HTML: texts from outside stay text, and the page is accessible."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from page_views import page_view

from quorum_wal.telemetry.page import rendering
from quorum_wal.telemetry.page.picture import BOX_HEIGHT, Link, Node, Picture, tall, wide
from quorum_wal.telemetry.page.rendering import render_body, render_page, render_sign_in
from quorum_wal.telemetry.page.tone import Tone

FOLDER = Path(rendering.__file__).parent
HOSTILE = (
    "<script>alert(1)</script>", "</title><svg onload=alert(1)>", "</style><b>", "--><b>",
    "\"'><img src=x onerror=alert(1)>", "javascript:alert(1)", "{{ 7 * 7 }}", "&lt;b&gt;",
    "\x00\u202e<b>",
)  # fmt: skip
#: WCAG 2.1, level AA, of text that is not large.
CONTRAST_MIN = 4.5


class Tags(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple((name, value or "") for name, value in attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def shape(self) -> list[tuple[str, list[str]]]:
        return [(tag, [name for name, _ in attributes]) for tag, attributes in self.elements]


def document(text: str) -> str:
    return render_page(page_view(text), nonce="n0nce", address="/body", has_session=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_from_outside_never_becomes_markup(text: str) -> None:
    """The same elements with the same attributes as with a harmless text of that length."""
    plain = "x" * len(text)
    assert Tags(document(text)).shape == Tags(document(plain)).shape
    assert Tags(render_body(page_view(text))).shape == Tags(render_body(page_view(plain))).shape
    for _, attributes in Tags(document(text)).elements:
        for name, value in attributes:
            assert name not in ("href", "src", "action") or not value.startswith("javascript:")
    form = render_sign_in(nonce="n", problem=text)
    assert Tags(form).shape == Tags(render_sign_in(nonce="n", problem="x")).shape


def test_what_is_shown_can_be_read_back() -> None:
    assert Tags(render_body(page_view("a<b>&\"'"))).text.count("a<b>&\"'") > 20


def test_nothing_is_marked_as_safe() -> None:
    for file in FOLDER.rglob("*"):
        if file.is_file() and file.suffix in (".py", ".html", ".css", ".js"):
            found = re.search(r"\|\s*safe|Markup|autoescape (false|off)|tojson", file.read_text())
            assert found is None, f"{file}: {found}"


def test_the_page_loads_nothing_from_other_hosts() -> None:
    """No address but its own and those of the services; scripts and styles carry the nonce."""
    for tag, attributes in Tags(document("text")).elements:
        values = dict(attributes)
        if tag in ("script", "style"):
            assert values == {"nonce": "n0nce"}
        assert "style" not in values
        assert not [name for name in values if name.startswith("on")]
        assert "src" not in values
    style = (FOLDER / "templates/style.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_without_scripts_loads_itself_again() -> None:
    html = document("text")
    assert re.search(r'<noscript><meta http-equiv="refresh" content="\d+"></noscript>', html)


def test_every_picture_and_chart_has_a_title() -> None:
    for svg in re.findall(r"<svg[^>]*role=\"img\"[^>]*>\s*<(\w+)>", render_body(page_view())):
        assert svg == "title"
    assert '<svg viewBox="0 0 24 8" aria-hidden="true">' in render_body(page_view())


def test_each_colour_has_a_sign() -> None:
    body = render_body(page_view())
    for tone in (Tone.OK, Tone.WARN, Tone.BAD):
        assert tone.sign in body
    assert len({tone.sign for tone in Tone}) == len(Tone)


# ---- colours


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_can_be_read_in_the_light_and_in_the_dark() -> None:
    style = (FOLDER / "templates/style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        inks = [name for name in colours if name not in ("ground", "sheet", "rule")]
        for ink, ground in product(inks, ("ground", "sheet")):
            assert contrast(colours[ink], colours[ground]) >= CONTRAST_MIN, (ink, ground)


# ---- the picture


def picture(members: int) -> Picture:
    nodes = tuple(Node(f"s{n}", "safekeeper " * 5, "state", Tone.OK) for n in range(members))
    head = Node("p", "proposer", "streaming", Tone.OK)
    links = [Link("p", node.key, Tone.OK) for node in nodes]
    links += [Link("s0", nodes[-1].key, Tone.WARN), Link("p", "not there", Tone.OK)]
    return Picture(((head,), nodes, ()), tuple(links))


@pytest.mark.parametrize("members", [1, 3, 7])
@pytest.mark.parametrize("layout", [wide, tall])
def test_boxes_lie_inside_and_do_not_overlap(members: int, layout: type[wide]) -> None:
    drawn = layout(picture(members))
    assert len(drawn.boxes) == members + 1
    assert len(drawn.curves) == members + 1  # a line to a hidden node is omitted
    for box in drawn.boxes:
        assert box.x >= 0
        assert box.x + box.width <= drawn.width
        assert box.y >= 0
        assert box.y + BOX_HEIGHT <= drawn.height
        assert len(box.name) < len(box.node.name) or len(box.node.name) < 20
    for one, other in product(drawn.boxes, repeat=2):
        is_apart = one is other or one.x != other.x or abs(one.y - other.y) >= BOX_HEIGHT
        assert is_apart, (one, other)


def test_the_tall_picture_fits_a_phone() -> None:
    assert tall(picture(3)).width <= 360
