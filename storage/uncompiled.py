"""Replaces the module `cython` where it is not installed: the modules then run interpreted.

A module that may be compiled tests `cython.compiled` where C has another way to do the same. The
compiler evaluates the test itself, and drops the other branch.
"""

from __future__ import annotations

compiled = False
