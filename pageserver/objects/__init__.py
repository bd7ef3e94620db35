"""The objects of a timeline in the store: names, index, deletion lists."""
