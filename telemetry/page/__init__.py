"""The web page of a service: its content (`page_view.py`), its HTML (`rendering.py`), and access.

Rendering is pure: it turns a view into HTML. Only the templates contain markup, and Jinja escapes
every value. Law: this package does not depend on a proposer or a safekeeper; each makes its view.
"""
