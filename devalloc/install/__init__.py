"""Installing devalloc on a Kubernetes cluster: manifests from ``deploy/`` and ``crds/``, applied and removed.

- ``kustomize``, ``manifests``: the objects of an installation, with the chosen options
- ``apply``, ``upgrade``: install, and what a new installation takes away
- ``device_holders``, ``remove``: uninstall, after a look at what holds devices
- ``chart``: the Helm chart
"""
