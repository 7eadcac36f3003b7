"""The life of a sequence: sampling parameters, scheduler, step loop."""
