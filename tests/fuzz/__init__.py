"""Fuzzing of every parser of bytes and texts that come from outside.

    valid encodings -> mutations -> a parser, within bounds -> a value, or a declared exception

`parsers.py` is the table of all parsers and of what each may raise; `streams.py` those that are fed
piece by piece; `mutation.py` the accidents; `bounds.py` the time and the memory a case may take.
Cases that once failed are files in `corpus/`, and are tried again by every run of the tests.
"""
