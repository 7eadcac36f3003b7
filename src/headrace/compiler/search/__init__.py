"""The search for a program's schedule: what may be chosen, what no choice can beat, and which choices to measure."""
