"""Deterministic simulation: the real cores under one seed, in one thread, in a world with faults.

    clock -> network, disk, processes, primaries -> cores -> actions -> network, disk ...
                                                      |
                                        invariants, after every step

Nothing here reads a clock, a random source or a file: a seed determines a run, byte for byte.
"""
