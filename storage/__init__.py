"""Bytes on a local disk, made durable. Below everything: it knows no WAL."""
