"""Measured claims: `python -m benchmarks [commit|bulk|restart ...]`. Method and figures: README.md.

A figure of one run says little: a neighbour on the machine moves it by more than most changes to
the code do. So setups are compared by ratios of pairs that were measured within one round, and the
peer is measured twice: how far it strays from itself is the error bar of everything else.
"""
