"""The verbs of the command. A module is imported when one of its verbs is used.

A verb is a function of its name under ``@verb``, in the module of its name, with ``_`` for ``-``. Some share a module
with a verb of the same subject: ``devalloc.cli.main`` lists the verbs and these modules.
"""
