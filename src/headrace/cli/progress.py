"""Progress bars of the command line."""

from headrace.llm.progress import pull_progress

__all__ = ["pull_progress"]
