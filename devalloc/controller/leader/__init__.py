"""Leader election, and the fencing that keeps a late write of an old leader from taking effect.

- ``lease``: the Lease, counted by this process's own clock
- ``election``: wait for the lease, fence, recover, lead; end the process when the lease is lost
- ``fencing``: a write on each object on which an allocation could be based
"""
