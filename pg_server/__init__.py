"""Postgres on this machine: its programs, the account that it runs as, a server that recovers.

What the commands need of it, and the fixtures build on. It knows nothing of our services, and no
test: a connection to a server is handed to it open. Linux only: it ends what it starts with the
help of PR_SET_PDEATHSIG.
"""
