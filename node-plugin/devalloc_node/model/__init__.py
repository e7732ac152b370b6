"""Value types that all rooms share: grants, prepared claims, steps, names."""
