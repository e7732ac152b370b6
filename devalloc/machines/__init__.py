"""The controller's side of machines.

- ``schedule``: which node runs a machine, as a requester of the allocator's loop
- ``permits``: what the machines of a node may have
- ``replica_sets``: as many machines as are wanted
- ``migrations``, ``migration_cleanup``: machines that move; ``drain``, ``drain_steps``: those that leave a node
- ``unserved_machines``: those of a node whose plugin has ended
"""
