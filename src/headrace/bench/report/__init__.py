"""Results as a page to look at."""

from headrace.bench.report.page import render, write_report

__all__ = ["render", "write_report"]
