"""The node's side of Kubernetes: ResourceSlices that tell what it has, ResourceClaims that tell who got what."""
