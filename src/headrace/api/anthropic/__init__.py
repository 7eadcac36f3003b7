"""Anthropic's Messages API: its requests, blocks, answers, events and errors."""
