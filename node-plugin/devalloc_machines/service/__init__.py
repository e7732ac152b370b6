"""Machines for callers: what may be done with one, and its claims with it.

- ``operations``: for the gRPC service and the loops of objects; ``attached_claims``: claims in machines
- ``service``: the methods for machines of our own gRPC service; ``request_fields``, ``replies``, ``spec_messages``: its
  messages; ``metrics``: what is counted of machines
"""
