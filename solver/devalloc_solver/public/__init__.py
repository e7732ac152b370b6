"""The public functions for claims of either dialect.

- ``fleet``: a fleet that stays in memory, for both dialects at once
- ``manifests``: solve manifests, or typed objects
- ``remaining_capacity``: how many more claims of a kind fit
"""
