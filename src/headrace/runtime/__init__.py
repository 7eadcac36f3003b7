"""Executors: they run batches."""
