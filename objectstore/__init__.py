"""Object stores for WAL and base backups, which must survive the loss of all machines.

keys      which object contains what: pure
sealed    the bytes of an object: pure
store     the interface of all stores
local     a folder, synced by our own code
remote    S3, GCS, Azure and memory, by obstore
archive   the WAL and the histories of one timeline, in a store
"""
