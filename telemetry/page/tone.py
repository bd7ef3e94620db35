"""`Tone`: the colour of a state, and a sign that means the same without the colour. Pure."""

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
