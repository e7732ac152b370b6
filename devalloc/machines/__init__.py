"""The controller's side of machines.

- ``permits``: what the machines of a node may have; ``runner_pods``: pods that run machines of other programs
- ``replica_sets``: as many machines as are wanted
- ``migrations``, ``migration_cleanup``: machines that move; ``drain``, ``drain_steps``: those that leave a node
- ``unserved_machines``: those of a node whose plugin has ended
"""
