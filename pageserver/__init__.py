"""Pages out of the WAL: what changed between two checkpoints, full backups without a backup, one
table at a moment, one page at an LSN."""
