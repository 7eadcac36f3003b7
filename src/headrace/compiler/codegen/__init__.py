"""Schedules become readable C: layouts, loop nests, expressions, kernels. See README.md."""
