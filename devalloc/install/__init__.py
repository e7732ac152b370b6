"""Installing devalloc on a Kubernetes cluster: manifests from ``deploy/`` and ``crds/``, applied and removed."""
