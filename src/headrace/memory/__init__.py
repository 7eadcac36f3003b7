"""Bytes that outlive a step: arena, typed pools, prefix tree."""
