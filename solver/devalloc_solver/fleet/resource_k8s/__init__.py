"""ResourceClaims in the Fleet: pools of one node are in the index, everything else is beside it.

- ``backend``, ``state``: the steps of calls; objects as they come and go
- ``device_properties``: what the index keeps of a slice
- ``claim_reader``, ``rules``: claims, and which kinds of devices they accept
- ``explainer``: why a claim gets nothing, from a few nodes and the ``cluster_counts`` of all
- ``full_solve``: the whole cluster as one problem, for what the index cannot express
"""
