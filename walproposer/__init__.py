"""The walproposer: attaches to a running primary, wins a term, streams its WAL to the safekeepers.

It never imports the safekeeper: the two share messages and laws (`consensus/`) only.
"""
