"""Between text and tokens: tokenizers, chat templates, incremental detokenization, stop strings."""

from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import Detokenizer
from headrace.text.prompt import Prompt, chat_prompt, text_prompt, token_prompt
from headrace.text.stop import StopMatcher
from headrace.text.stream import MessageDelta, MessageStream, StopStringConstraint, stop_constraint_factory
from headrace.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "MessageDelta",
    "MessageStream",
    "Prompt",
    "StopMatcher",
    "StopStringConstraint",
    "Tokenizer",
    "chat_prompt",
    "load_tokenizer",
    "stop_constraint_factory",
    "text_prompt",
    "token_prompt",
]
