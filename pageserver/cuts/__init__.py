"""What a cut is made of, read back: its pages, all of its files, a backup."""
