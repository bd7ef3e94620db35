"""Fuzzing of every parser of outside bytes and texts.

    valid encodings -> mutations -> a parser, within bounds -> a value, or a declared exception

`parsers.py` is the table of all parsers and of the exceptions of each; `streams.py` has those that
get their input in pieces; `mutation.py` the mutations; `bounds.py` the limits of time and memory
for a case. Cases that once failed are files in `corpus/`, and every run of the tests tries them
again.
"""
