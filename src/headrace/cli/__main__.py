"""``python -m headrace.cli``: the same as ``headrace``."""

from headrace.cli import main

main()
