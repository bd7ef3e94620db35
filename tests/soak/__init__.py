"""The soak: a cluster of real processes, clients that commit, and faults for any length of time.

    clients -> Postgres  <- proposer ==wires==> safekeepers 1 2 3  ==wires==> standby (Postgres)
               `------------- the two machines change places at every failover ------'

Wires, disks, processes and machines fail, several at a time. Law: no acknowledged row is ever lost
or duplicated, whatever failed; and without faults, commits proceed.
"""
