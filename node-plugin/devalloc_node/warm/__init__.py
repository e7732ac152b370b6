"""The pool of warm machine setups: a network namespace, a TAP interface and a folder each, made before it is used.

- ``pool``: who has which setup; ``pool_state``, ``background``: what goes on behind it
- ``setup``: what a setup is; ``parts``, over ``network``: make and remove each of its parts
- ``builder``: a whole setup: recorded first, and removed from whatever exists of it
- ``paused_machine``: a QEMU that waits in a setup; ``sandboxes``: setups for this node's own machines
- ``records``: what outlives a killed plugin
- ``requests``, ``replicas``, ``cpu_pinning``: replicas of a function as machines, and their CPUs
"""
