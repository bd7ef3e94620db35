"""Stands in for the module `cython` where that is not installed: what imports it runs interpreted.

A module that may be compiled asks `cython.compiled` where C has another way to say the same; the
compiler answers that itself, and drops the other branch.
"""

from __future__ import annotations

compiled = False
