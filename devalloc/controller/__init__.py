"""The programs that act on a store: publish devices, allocate claims, grant permits, show the fleet.

- ``reconcile``: the loops that allocate, for DeviceClaims, ResourceClaims and machines
- ``host_inventory``, ``pool_publisher``: from the inventory of this host to DevicePools
- ``cordon``, ``manifest_apply``: changes that users ask for
- ``leader``: one of several controllers leads
- ``permits``: the permit server
- ``overview``, ``page``: the fleet at a glance
- ``http_endpoints``, ``authorization``, ``metrics``: what is served over HTTP, and to whom
"""
