"""What `sk spark` runs: the lake, the report, a table as it was."""
