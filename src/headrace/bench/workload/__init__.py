"""What is asked: lengths, sessions, traces, arrivals, and the tokens of the prompts."""
