"""The lease that prevents two proposers from competing for one primary, and its implementations."""
