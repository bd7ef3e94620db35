"""Records as arrays: from WAL bytes to Arrow columns, in compiled loops; knows no files."""
