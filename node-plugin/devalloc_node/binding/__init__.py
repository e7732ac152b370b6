"""Bindings: how a kind of device is made ready for a machine."""
