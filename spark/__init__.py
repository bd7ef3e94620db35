"""PySpark data sources for the WAL, and jobs that use them.

This package reads the archive and the wire protocol, and never imports the services.
"""
