"""How models write tool calls, reasoning and channels: one notation, and what is made of it.

A format is a file of data (``data/*.toml``). From it come the reader of what a model writes, the grammar that holds a
model to it, and the check that a chat template writes what the reader reads.
"""
