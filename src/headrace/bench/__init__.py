"""Measurements of engine and machine."""
