"""PySpark reads the WAL: data sources, and jobs on them.

It sees the archive and the wire as an outsider would, and never imports the services.
"""
