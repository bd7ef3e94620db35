"""The view of a cluster from outside: reports, and a verdict.

It asks safekeepers, proposers and primaries, as any client can. It changes nothing and prints
nothing.
"""
