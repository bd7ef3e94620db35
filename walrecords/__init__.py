"""WAL records as arrays. Compiled loops find, check and parse them, thirty times as fast as one
object for each record. Uses `pgwal` and accepts exactly what it accepts. Does no I/O, except for
the cache of compiled loops."""

from pathlib import Path

from quorum_wal.walrecords.compiled_cache import choose_cache_folder

choose_cache_folder(Path(__file__).parent)
