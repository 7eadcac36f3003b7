"""Checkpoint readers and one file a model family."""
