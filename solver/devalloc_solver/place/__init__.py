"""The exact placement of one unit, without CP-SAT.

Most questions are about one claim, or one group of claims that share a node. This search counts: equal devices are one
number, equal requests one demand entry, and a dynamic program over the components of each pool finds the fewest pools
and devices, or proves that there is no answer. If its budget ends first, it raises ``StepsExhausted``, and the exact
model decides.

From the outside in:

- ``node_search``: the nodes, in the order of ``node_order``
- ``match_values``: the values that devices agree on
- ``cover_dp``: pools and devices; ``components`` and ``component_options`` say what a pool can serve
- ``device_assignment``: from counts to devices

Beside it: ``counting_bounds`` refutes a question first, ``single_request`` answers the most common one, ``greedy``
gives first answers, ``matching`` decides what asks for whole devices only, and ``search_context`` compares placements.
"""

from devalloc_solver.place.matching import can_match
from devalloc_solver.place.node_search import UnitPlacement, fits, fits_on, place, place_on
from devalloc_solver.place.node_view import UnitReader
from devalloc_solver.place.step_budget import (
    DEFAULT_STEPS,
    SearchDeadline,
    SearchTimeout,
    SharesInterfere,
    StepBudget,
    StepsExhausted,
)
from devalloc_solver.problem.placement_score import PlacementScore

__all__ = [
    "DEFAULT_STEPS",
    "PlacementScore",
    "SearchDeadline",
    "SearchTimeout",
    "SharesInterfere",
    "StepBudget",
    "StepsExhausted",
    "UnitPlacement",
    "UnitReader",
    "can_match",
    "fits",
    "fits_on",
    "place",
    "place_on",
]
