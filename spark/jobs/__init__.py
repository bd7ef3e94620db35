"""The jobs of `sk spark`: the lake, the report, and a table at an earlier time."""
