"""What `sk promote` and `sk rejoin` do: another server becomes the primary, no commit is lost."""
