"""Headrace, an LLM inference stack in Python."""

__version__ = "0.1.0"
