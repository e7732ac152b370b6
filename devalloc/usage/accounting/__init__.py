"""Usage accounting: who held which devices, CPUs and memory, for how long.

- ``holdings``: from the objects of both dialects to what is held now
- ``ledger``: totals of a month; pure arithmetic
- ``records``: a month as a ConfigMap
- ``accountant``: the loop; ``metrics``: its counters; ``report``: answers about a month
"""

from devalloc.usage.accounting.accountant import UsageAccountant

__all__ = ["UsageAccountant"]
