"""The Postgres installation on this machine: its programs, the account it runs as, recovery of a
server.

The commands and the fixtures use this package. It does not import our services or test code. A
caller passes in an open connection to a server. Linux only: it uses PR_SET_PDEATHSIG to end the
processes that it starts.
"""
