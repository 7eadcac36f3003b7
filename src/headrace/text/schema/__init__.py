"""JSON Schemas as grammars that admit their instances and nothing else."""

from headrace.text.schema.compile import Dialect, schema_rules
from headrace.text.schema.spacing import Spacing

__all__ = ["Dialect", "Spacing", "schema_rules"]
