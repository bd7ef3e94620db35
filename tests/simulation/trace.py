"""`Trace`: one line per event, for people; nothing at all when nobody reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .clock import Clock

#: Bytes are of no use to a reader, and ids only in their first digits.
_BYTES = re.compile(r"wal=b(\"|').*?\1(?=[,)])", re.DOTALL)
_UUID = re.compile(r"proposer_uuid=b(\"|')(.*?)\1(?=[,)])")
_LSN = re.compile(r"(\w*_?lsn|start_streaming_at)=(\d+)")


class Trace:
    """Calling it writes a line to `write`, unless that is None."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self.clock = Clock()
        self._write = write

    def __call__(self, who: str, event: object, actions: Sequence[object], remark: str) -> None:
        if self._write is None:
            return
        ordered = "; ".join(map(short, actions))
        line = f"{self.clock.now_us / 1e6:9.6f}  {who:5} {short(event)}"
        line += f" -> {ordered}" if ordered else ""
        self._write(line + (f"  ({remark})" if remark else ""))


def short(value: object) -> str:
    """The value's repr with less in it; LSNs in hexadecimal."""
    text = repr(value) if not isinstance(value, str) and _has_fields(value) else str(value)
    text = _BYTES.sub("wal=..", text)
    text = _UUID.sub(lambda m: f"uuid={m[2].encode()[:16].decode()}", text)
    text = _LSN.sub(lambda m: f"{m[1]}={int(m[2]):X}", text)
    return text if len(text) < 400 else text[:400] + " .."


def _has_fields(value: object) -> bool:
    return type(value).__str__ is object.__str__
