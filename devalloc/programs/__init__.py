"""The processes of devalloc: the only place that puts their parts together."""
