"""The objects of a timeline in the store: their names, the index, lists of deletions."""
