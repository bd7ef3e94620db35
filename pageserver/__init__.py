"""Pages out of the WAL: what changed between two checkpoints, full backups without a backup, one
table at a moment, one page at an LSN.

And kept in an object store by any number of pageservers, of which only one may delete. Its cores:
`attachment.py` is one timeline at one pageserver; `deletion_queue.py` deletes what the indices of a
process name no more; `validation.py` asks whether the process may; `scrub.py` finds what nothing
names; `timeline_removal.py` deletes a timeline. The objects are `page_keys.py`, `page_index.py` and
`deletion_list.py`; `garbage.py` says what may go.
"""
