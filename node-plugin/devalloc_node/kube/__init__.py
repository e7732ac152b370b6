"""The node's side of Kubernetes: ResourceSlices of what it has, ResourceClaims as grants, and their status.

- ``publisher``, ``slices``: from pools to ResourceSlices, with the fields that the API server keeps
- ``grants``, ``claim_status``: ResourceClaims, in and out
- ``label_change``: take back what the node published in the other dialect
- ``credentials``: a token for a plugin that is a service of its host
"""
