"""Installing devalloc on a Kubernetes cluster: manifests from ``deploy/`` and ``crds/``, applied and removed.

- ``manifests``: the objects of an installation, with the chosen options
- ``apply``, ``upgrade``: install, and what a new installation takes away
- ``remove``: uninstall, after a check that nothing holds devices
- ``chart``: the Helm chart
"""
