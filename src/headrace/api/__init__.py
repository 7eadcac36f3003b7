"""Wire formats: OpenAI requests and answers, validation, error bodies, server-sent events."""
