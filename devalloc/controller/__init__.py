"""The programs that act on a store: publish devices, allocate claims.

- ``reconcile``: the loops that allocate, for DeviceClaims, ResourceClaims and machines
- ``host_inventory``, ``pool_publisher``: from the inventory of this host to DevicePools
- ``cordon``, ``manifest_apply``: changes that users ask for
- ``leader``: one of several controllers leads
- ``http_endpoints``, ``authorization``, ``metrics``: what is served over HTTP, and to whom
"""
