"""ResourceSlices, DeviceClasses and ResourceClaims of resource.k8s.io/v1."""
