"""The loops that allocate: read what changed, solve, write the answers, wait for the next change.

- ``device_claims``: the loop for DeviceClaims; ``resource_claims``: the same for ResourceClaims of dedicated nodes
- ``requester``: what asks for devices beside claims, as claims of the same solve
- ``loop``: what both share: settings, pauses, the wait for a change, the fenced commit, node labels
- ``snapshot``: what changed in the store, and values computed from it
- ``resting``: which claims and machines a round looks at: not those that wait for a change that has not come
- ``surroundings``: all else that a round reads, such as pools; only what has changed is read anew
- ``round_solver``, ``searches``: answers, by a Fleet that stays in memory; long searches beside the loop
- ``decision``, ``preconditions``, ``write_backoff``: what is written, when it may be, and what the store rejected
- ``release``: take back the devices of a claim
- ``stored_claims``: claims as they count, and objects that are only stored; ``availability``, ``events``: what is shown
"""
