"""How good or bad something is, with a sign for those who see no colours. Pure."""

from __future__ import annotations

from enum import Enum


class Tone(Enum):
    """The value is the class of the style sheet."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"
    PLAIN = "plain"

    @property
    def sign(self) -> str:
        return {"ok": "●", "warn": "▲", "bad": "✕", "idle": "○", "plain": ""}[self.value]
