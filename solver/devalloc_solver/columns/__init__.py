"""The joint allocation of large batches, by column generation over the states of nodes.

Claims of one kind and nodes in one state are counted, not named. What a node can still take is a path through its
states. The bound of every level is computed in integers from the prices of the linear program.

- ``allocate``: all levels of S17, over ``priority_levels``
- ``claim_kinds``, ``node_geometry``, ``bins``, ``state_space``: the problem in kinds and states
- ``master_problem``, ``pricing``, ``patterns``: the linear program, its prices, and new columns
- ``priority_levels``, ``neighbourhood``: whole claims, by diving; CP-SAT repairs a few bins at a time
- ``remaining_units``: units outside the column model, one by one
- ``device_naming``: from paths to device names
"""

from devalloc_solver.columns.allocate import allocate_batch

__all__ = ["allocate_batch"]
