"""The search for a faster program: what is tried, in which process, and how it is timed."""
