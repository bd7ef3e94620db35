"""Real Postgres servers, our services as processes, faults, the ledger: for tests and `sk demo`.

Linux only: it uses /proc and PR_SET_PDEATHSIG to end what it starts. It uses our services from
outside, by their command line, their wire protocol and their HTTP status, and does not import them.
"""
