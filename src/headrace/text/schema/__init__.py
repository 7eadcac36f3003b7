"""JSON Schemas as grammars that admit their instances and nothing else."""

from headrace.text.schema.compile import schema_rules
from headrace.text.schema.spacing import Spacing

__all__ = ["Spacing", "schema_rules"]
