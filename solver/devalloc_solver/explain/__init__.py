"""Why a unit is not placed: the smallest sets of rules, devices and claims without which it fits (S19).

- ``reasons``: the codes; ``messages``: phrases of the sentences
- ``feasibility``: whether a unit fits a fleet, for certain
- ``relaxations``: rules that can be dropped, and the search for the fewest; ``supply_relaxations``: those of the supply
- ``blocking_claims``: whose release makes room; ``minimal_overcommit``: what is short by how much
- ``impossibility``: why it fits no node even if nothing is in use
- ``funnel``: how many devices each step leaves
- ``devmgmt``, ``resource_k8s``: all of it together, for each dialect
"""
