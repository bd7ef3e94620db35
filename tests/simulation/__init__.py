"""Deterministic simulation: the real cores under one seed, in one thread, on a world that fails.

    clock -> network, disk, processes, primaries -> cores -> actions -> network, disk ...
                                  |
                             invariants, after every step

Nothing here reads a clock, a random source or a file: a seed is a run, byte for byte.
"""
