"""What the verbs of the command do. A module is imported when one of its verbs runs.

``devalloc.cli.options`` has their options and helps: ``@runs`` names the module of this folder with the function.
"""
