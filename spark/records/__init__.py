"""From records as arrays to Arrow columns; knows no files."""
