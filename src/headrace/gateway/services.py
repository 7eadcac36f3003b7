"""``Services``: what the routes work with, made once at the start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api.errors import model_not_found
from headrace.gateway.config import GatewayConfig
from headrace.gateway.generation import Generator
from headrace.gateway.grammars import Grammars
from headrace.gateway.metrics import Metrics
from headrace.gateway.replica import Replica
from headrace.gateway.response_store import ResponseStore
from headrace.text.model_text import ModelText
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes work with.

    Attributes:
        model: Name of the model served.
        created: When it was loaded, seconds since 1970.
        config: The operator's decisions.
        text: What the model reads and writes.
        replica: Runs it.
        generator: Admits and runs jobs on it.
        metrics: What is observed.
        grammars: Tries what answers are to follow.
        responses: Those that may be read again and continued.
    """

    model: str
    created: int
    config: GatewayConfig
    text: ModelText
    replica: Replica
    generator: Generator
    metrics: Metrics
    grammars: Grammars
    responses: ResponseStore

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.text.tokenizer

    def check_model(self, name: str | None) -> None:
        """Raise ``ApiError`` (404) for a model that is not served here; None is the one that is."""
        if name is not None and name != self.model:
            raise model_not_found(name, [self.model])
