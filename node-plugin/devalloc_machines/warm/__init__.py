"""The pool of warm machine setups: a network namespace, a TAP interface and a folder each, made before it is used.

- ``part``, ``service``: the pool as a part of a node, with its gRPC service
- ``pool``: who has which setup, and the work behind it; ``pool_state``: its state
- ``setup``: what a setup is, and which CPUs it gets
- ``builder``, over ``network``: a whole setup and its parts: recorded first, and removed from whatever exists of it
- ``bridge``, ``cni`` with ``cni_part``, ``addresses``: the network of setups; ``guest_port``: what a guest may send
- ``paused_machine``: a QEMU that waits in a setup
- ``records``: what outlives a killed plugin
- ``function_replicas``: replicas of a function as machines
"""
