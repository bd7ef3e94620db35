"""Any moment behind a cut: a page, a table, a server as of then."""
