"""Reads and changes settings of a primary, with ordinary queries. Its WAL stream is in
`stream/`."""
