"""The pytest plugin: fixtures for a real Postgres, our services as processes, and faults."""
