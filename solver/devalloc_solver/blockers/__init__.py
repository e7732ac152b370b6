"""What stands in a unit's way: the smallest sets of rules, devices and claims without which it fits (S19).

- ``question``: whether a unit fits a fleet, for certain
- ``edits``: things that can be taken away, and the search for the fewest of them
- ``details``: what a claim's own spec offers to be taken away
- ``supply``: pool resources, compatibility groups and withheld devices
- ``claims``: whose release makes room
- ``slips``: names and values that were most likely mistyped
- ``words``: how all that is said

Nothing here knows a stage after the search; ``explain`` puts the pieces together.
"""
