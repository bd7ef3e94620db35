"""Observation of a service: logs on stderr, and an HTTP port with status, metrics and health.

This package does not import the services; they pass functions to it.
"""
