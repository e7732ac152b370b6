"""Why a unit is not placed: the smallest sets of rules, devices and claims without which it fits (S19).

- ``explainer``: which reason, in which order, verified by which relaxation, for every dialect; begin reading here.
  A dialect has its rules by field path in its ``relaxations``, in the order in which they are tried
- ``feasibility``: whether a unit fits a fleet, for certain
- ``relaxations``: rules that can be dropped, and the search for the fewest; ``supply_relaxations``: those of the supply
- ``leaving``: who must leave to make room; ``supply_relaxations`` also finds what is short by how much
- ``funnel``: how many devices each step leaves; ``typos``: names and values that were most likely mistyped
"""
