"""Prometheus metrics. Names carry their unit; everything is in one registry of the application."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headrace.engine.messages import EngineStats, StepReport
from headrace.engine.timeline import Durations

LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
FINE = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)


class Metrics:
    """What ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._gauge("requests_running", "Samples in slots of the engine.")
        self.waiting = self._gauge("requests_waiting", "Samples in the engine's queue.")
        self.pages = self._gauge("kv_pages", "Pages of KV memory by state.", "state")
        self.page_use = self._gauge("kv_page_use_ratio", "Share of pages that running samples hold.")
        self.engine_up = self._gauge("engine_up", "1 when the engine takes requests.")
        self.in_flight = self._gauge("http_requests_in_flight", "Requests that are being answered.")
        self.stored = self._gauge("stored_responses", "Responses that may be read again and continued.")
        self.stored_bytes = self._gauge("stored_responses_bytes", "Memory that they take.")

        self.prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of samples that got a first token, and of embeddings."
        )
        self.cached_tokens = self._counter("prefix_cache_hit_tokens", "Prompt tokens found in the prefix tree.")
        self.tier_tokens = self._counter("prefix_tier_tokens", "Tokens loaded from host memory or disk.")
        self.output_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self.masked_tokens = self._counter("masked_tokens", "Tokens drawn where a grammar did not allow all.")
        self.forced_tokens = self._counter("forced_tokens", "Tokens not drawn, for a grammar allowed no others.")
        self.preemptions = self._counter("preemptions", "Samples put back into the queue for want of pages.")
        self.aborted = self._counter("requests_aborted", "Requests whose client went away.")
        self.restarts = self._counter("engine_restarts", "Engine processes that were lost and replaced.")
        self.requests = self._counter("http_requests", "Answers by route and status.", "route", "status")
        self.finished = self._counter("samples_finished", "Samples by reason of their end.", "reason")
        self.tool_calls = self._counter(
            "tool_calls", "What began as a tool call, by what became of it.", "format", "outcome"
        )

        self.first_token = self._histogram("time_to_first_token_seconds", "Received to first token.", LATENCY)
        self.gap = self._histogram("inter_token_latency_seconds", "Between two tokens of a sample.", GAP)
        self.end_to_end = self._histogram("request_end_to_end_seconds", "Received to last token.", LATENCY)
        self.queue = self._histogram("request_queue_seconds", "Queued at the engine to first scheduled.", LATENCY)
        self.prefill = self._histogram("request_prefill_seconds", "First scheduled to prompt computed.", LATENCY)
        self.step = self._histogram("step_seconds", "Duration of an engine step.", GAP)
        self.overhead = self._histogram("step_overhead_seconds", "Its part outside the executor.", FINE)
        self.host = self._histogram("step_host_seconds", "Planning and results of a step, hidden or not.", FINE)

    def on_report(self, before: EngineStats, report: StepReport) -> None:
        """Take a step's gauges, and what its counters gained since the report before."""
        now = report.stats
        self.on_stats(now)
        self.prompt_tokens.inc(now.prompt_tokens - before.prompt_tokens)
        self.cached_tokens.inc(now.cached_tokens - before.cached_tokens)
        self.tier_tokens.inc(now.tier_tokens - before.tier_tokens)
        self.output_tokens.inc(now.output_tokens - before.output_tokens)
        self.masked_tokens.inc(now.masked_tokens - before.masked_tokens)
        self.forced_tokens.inc(now.forced_tokens - before.forced_tokens)
        self.preemptions.inc(now.preemptions - before.preemptions)
        self.aborted.inc(now.aborted - before.aborted)
        if now.step > before.step:
            self.step.observe(now.step_seconds)
            self.overhead.observe(max(now.step_seconds - now.forward_seconds, 0.0))
            self.host.observe(now.host_seconds)

    def on_stats(self, stats: EngineStats) -> None:
        """Set the engine's gauges."""
        self.running.set(stats.running)
        self.waiting.set(stats.waiting)
        for state, pages in (
            ("used", stats.pages_used),
            ("cached", stats.pages_cached),
            ("free", stats.pages_free),
        ):
            self.pages.labels(state).set(pages)
        total = stats.pages_used + stats.pages_cached + stats.pages_free
        self.page_use.set(stats.pages_used / total if total else 0.0)

    def on_finish(self, reason: str, durations: Durations) -> None:
        """Observe a finished sample."""
        self.finished.labels(reason).inc()
        for histogram, seconds in (
            (self.first_token, durations.time_to_first_token),
            (self.end_to_end, durations.end_to_end),
            (self.queue, durations.queue),
            (self.prefill, durations.prefill),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"headrace_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headrace_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"headrace_{name}", text, buckets=buckets, registry=self.registry)
