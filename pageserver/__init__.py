"""Builds pages from WAL: the changes between two checkpoints, full backups synthesized from them,
one table at a point in time, one page at an LSN.

Any number of pageservers share an object store; only one of them may delete objects. The cores:
`attachment.py` is one timeline at one pageserver. `deletion_queue.py` deletes objects that the
indices of a process no longer name. `validation.py` checks whether the process may do so.
`scrub.py` finds objects that no index names. `timeline_removal.py` deletes a timeline. The object
formats are `page_keys.py`, `page_index.py` and `deletion_list.py`. `garbage.py` decides which
objects are no longer needed.
"""
