"""The public functions for claims of either dialect.

- ``manifests``: solve manifests, or typed objects
- ``remaining_capacity``: how many more claims of a kind fit
"""
