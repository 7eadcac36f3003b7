"""From a graph to loops and stages: what is kept in memory, what runs together, in which tiles. See README.md."""
