"""Number formats: how weights are stored, what recipes make of a program, and how much of a model that loses."""
