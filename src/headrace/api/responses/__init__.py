"""OpenAI's Responses API: its requests, items, answers and events."""
