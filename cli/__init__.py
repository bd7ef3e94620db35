"""The `sk` command: thin, one module per group. It parses, calls a library function, prints.

Data goes to stdout, logs to stderr.
"""
