"""What a service tells about itself: logs on stderr, and an HTTP port with status, metrics, health.

It knows nothing of the services; they hand it functions.
"""
