"""How it is asked: connections, streams, the clock, and what was seen."""
