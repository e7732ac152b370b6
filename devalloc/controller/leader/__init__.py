"""Leader election: one of several controllers leads.

- ``lease``: the Lease, counted by this process's own clock
- ``election``: wait for the lease, fence (``devalloc.store.fencing``), recover, lead; end the process when the lease is
  lost
"""
