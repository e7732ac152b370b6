"""Output of the command: tables for people, JSON and YAML for programs."""
