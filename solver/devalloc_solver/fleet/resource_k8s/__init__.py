"""ResourceClaims in the Fleet: what only this dialect knows.

- ``backend``, ``state``: the steps of calls; objects as they come and go
- ``device_properties``: what the index keeps of a slice
- ``claim_reader``, ``rules``: claims, and which kinds of devices they accept
- ``explainer``: why a claim gets nothing, from a few nodes and the ``cluster_counts`` of all, or from all nodes
"""
