"""The lease that keeps two proposers from fighting for one primary, and the locks it may hold."""
