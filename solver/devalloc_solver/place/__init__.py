"""The exact placement of one unit, without CP-SAT.

Most questions are about one claim, or one group of claims that share a node. This room answers them by a search that
counts instead of trying: equal devices are one number, equal asks are one lane, and a dynamic program over the parts
of each pool finds the fewest pools and devices, or proves that there is no answer. What it cannot settle within its
budget it says so (``OutOfSteps``), and CP-SAT is asked.

From the outside in: ``search`` (the nodes) asks ``choose`` (the alternatives), which asks ``settle`` (the values that
devices agree on), which asks ``cover`` (pools and devices); ``screen`` and ``bounds`` refute what counting can refute.
"""

from devalloc_solver.place.asks import Reader
from devalloc_solver.place.score import Score
from devalloc_solver.place.search import Found, fits, place, place_on
from devalloc_solver.place.steps import DEFAULT, OutOfSteps, Steps

__all__ = ["DEFAULT", "Found", "OutOfSteps", "Reader", "Score", "Steps", "fits", "place", "place_on"]
