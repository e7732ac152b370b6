"""From manifests to answers: the steps of a solve, for both dialects.

- ``device_claims``, ``resource_k8s``: the steps, top to bottom; ``one_node``: what kube-scheduler asks of its allocator
- ``admission``, ``quota``: which pending claims may be solved
- ``decomposition``: subproblems; ``strategy``: which search for which of them
- ``remaining_capacity``: how many more claims of a kind fit
"""
