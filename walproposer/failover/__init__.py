"""`sk promote` and `sk rejoin`: another server becomes the primary, and no commit is lost."""
