"""From a family's PyTorch module to the compiler's IR. The only part of the compiler that imports PyTorch."""

from headrace.compiler.capture.arguments import Argument
from headrace.compiler.capture.capture import Captured, capture_function, capture_model
from headrace.compiler.capture.errors import Unsupported

__all__ = ["Argument", "Captured", "Unsupported", "capture_function", "capture_model"]
