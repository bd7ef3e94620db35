"""Changing the members of a timeline: requests, and who carries them out."""
