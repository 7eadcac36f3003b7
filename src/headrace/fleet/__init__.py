"""Replicas: the process that puts text, engine, runtime and model together, and its supervisor."""
