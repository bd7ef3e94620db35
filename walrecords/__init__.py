"""WAL records as arrays: found, checked and taken apart by compiled loops, thirty times as fast as
an object a record. Stands on `pgwal`, whose law it keeps; does no I/O."""
