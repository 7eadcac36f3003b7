"""Tiers of stored state behind the arena: host memory and disk."""
