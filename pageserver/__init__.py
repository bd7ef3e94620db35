"""Pages of a timeline, made from its WAL and kept in an object store, by any number of pageservers
of which only one may delete.

Cores: `attachment.py` is one timeline at one pageserver; `deletion_queue.py` deletes what the
indices of a process name no more; `validation.py` asks whether the process may; `scrub.py` finds
what nothing names; `timeline_removal.py` deletes a timeline. `page_keys.py`, `page_index.py` and
`deletion_list.py` are the objects; `garbage.py` says what may go.
"""
