"""ResourceClaims of resource.k8s.io that devalloc's controller allocates in place of kube-scheduler, jointly.

A claim chooses it by a label, a node by being set aside (``devalloc.api.dedicated_pools``): only devices of such nodes
are given, and only to such claims, so that no device has two allocators. A claim is allocated when a pod waits for it,
for those pods (``reservedFor``), with the finalizer that kube-scheduler sets as well; so kube-controller-manager takes
it back as usual when they are gone. kube-scheduler finds the claim allocated, and takes its pod to the node of its
devices.
"""
