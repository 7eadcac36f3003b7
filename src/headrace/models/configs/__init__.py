"""Dimensions of each family, parsed from ``config.json`` and checked value by value. No PyTorch."""
