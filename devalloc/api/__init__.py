"""The objects that users write, and what every other package may read without a store or a host.

- ``pool``, ``device_class``, ``claim``, ``virtual_machine``: the kinds; ``kinds`` lists them
- ``quantity``, ``semver``: exact amounts and versions
- ``json_content``, ``content_cache``: what documents may contain; equal content is read once
- ``manifests``: from files to objects, with every problem and its path; ``validation`` finds the problems
- ``crds``: from the models to CustomResourceDefinitions, with their rules
- ``reasons``: the codes that say why a claim or machine waits
- ``meta``: annotations, labels and finalizers
"""
