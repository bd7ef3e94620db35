"""The `sk` command, one module per group. A command parses, calls a library function, and prints.

Data goes to stdout, logs to stderr.
"""
