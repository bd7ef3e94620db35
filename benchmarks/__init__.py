"""Measured claims: `python -m benchmarks [commit|bulk|restart ...]`. Method and figures: README.md.

A single run means little: other work on the machine changes a figure more than most changes of the
code do. So setups are compared by ratios of pairs that were measured in the same round. The peer is
measured twice: its deviation from itself is the error of all other figures.
"""
