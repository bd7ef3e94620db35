"""Mirror tables: copies of tables of a database that follow its WAL (`docs/mirror.md`)."""
