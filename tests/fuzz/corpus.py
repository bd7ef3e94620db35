"""Cases that once failed: `corpus/<row of the table>/<description>`, one file each, raw bytes.

Texts are stored as UTF-8, with surrogates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from .parsers import PARSERS, Parser
from .streams import STREAMS, Stream

CORPUS = Path(__file__).with_name("corpus")
ROWS: dict[str, Parser | Stream] = {
    **{row.name: row for row in PARSERS},
    **{row.name: row for row in STREAMS},
}


def kept_cases() -> list[tuple[str, Path]]:
    """The row and the file of each."""
    return [(path.parent.name, path) for path in sorted(CORPUS.glob("*/*"))]


def try_case(row: Parser | Stream, case: bytes, seed: int) -> None:
    """Raises every error that is a defect."""
    if isinstance(row, Stream):
        row.try_case(case, Random(seed))
    else:
        row.try_case(case)


def failure(row: Parser | Stream, case: bytes, seed: int) -> str:
    """The defect; "" if there is none."""
    try:
        try_case(row, case, seed)
    except UnicodeDecodeError as error:
        return "" if _is_no_text(row, case) else repr(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def _is_no_text(row: Parser | Stream, case: bytes) -> bool:
    """Bytes that the reduction has cut inside a character."""
    try:
        case.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return isinstance(row, Parser) and bool(row.texts)
    return False


def minimise(case: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Remove parts of it, as long as it fails."""
    size = max(1, len(case) // 2)
    while True:
        at = 0
        while at < len(case):
            smaller = case[:at] + case[at + size :]
            if fails(smaller):
                case = smaller
            else:
                at += size
        if size == 1:
            return case
        size //= 2


def keep(row: Parser | Stream, case: bytes) -> Path:
    """Write it to the corpus; the developer who repairs the parser renames it."""
    folder = CORPUS / row.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(case).hexdigest()[:12]
    path.write_bytes(case)
    return path
