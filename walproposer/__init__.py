"""The walproposer: attaches to a running primary, wins a term, streams its WAL to the safekeepers.

It never imports the safekeeper package. The two share only messages and laws (`consensus/`).
"""
