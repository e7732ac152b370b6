"""The back end of the Fleet for ResourceClaims: pools of one node in the index, everything else beside it.

- ``state``: objects as they come and go; ``device_properties``: what the index keeps of a slice
- ``claim_reader``, ``rules``: claims, and which kinds of devices they accept
- ``explainer``: why a claim gets nothing, from a few nodes (``subset``) and the ``cluster_counts`` of all
- ``named_devices``: claims that select devices by a unique attribute
- ``full_solve``: the whole cluster as one problem, for what the index cannot express
"""
