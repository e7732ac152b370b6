"""DeviceClaims in the Fleet.

- ``backend``, ``state``: the steps of calls; pools, classes and claims as they come and go
- ``documents``: manifests by name, and claims as they are read
- ``rules``: which kinds of devices classes and claims accept
- ``explainer``: why a claim gets nothing, from a few nodes
"""
