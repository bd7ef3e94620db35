"""A real Postgres, our services as processes, faults, the ledger: for tests, `sk dev`, `sk demo`.

Linux only: it ends what it starts with the help of /proc and PR_SET_PDEATHSIG. It speaks to our
services as an outsider would, by their command line, their wire and their HTTP status; it imports
none of their code.
"""
