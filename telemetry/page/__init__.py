"""The web page of a service: what it shows (`page_view.py`), how that looks, and who may see it.

Rendering is pure: a view in, HTML out. Only the templates hold markup, and Jinja escapes all that
is put into them. Law: nothing here knows a proposer or a safekeeper; a service makes its view.
"""
