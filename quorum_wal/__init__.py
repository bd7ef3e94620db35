"""The one name that an installation has: `quorum_wal.cli`, `quorum_wal.spark`, `quorum_wal.qsync`.

Each package is a folder of the repository; here is a link to it. The wheel has the folders
themselves. Law: a package is imported by this name alone, also within the repository. By two names
Python would load it twice, and no class of the one would be a class of the other.
"""
