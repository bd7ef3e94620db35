"""Where WAL and base backups outlive every machine.

keys      which object holds what: pure
sealed    what an object's bytes look like: pure
store     what every store can do
local     a folder, durable on its own terms
remote    S3, GCS, Azure and memory, by obstore
archive   the WAL and the histories of one timeline, in a store
"""
