"""The joint allocation of large batches, by column generation over the states of nodes.

Claims of one kind and nodes in one state are counted, not named. What a node can still take is a path through its
states; a linear program chooses paths, a dive makes them whole, and an exact model mends what is left of the gap.
The bound of every level is computed in integers from the prices of that program.
"""

from devalloc_solver.columns.allocate import allocate_batch, allocate_quickly

__all__ = ["allocate_batch", "allocate_quickly"]
