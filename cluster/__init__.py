"""A cluster from outside: what safekeepers, proposers and primaries say, and the verdict on it.

It asks as any client does and changes nothing; it does not print.
"""
