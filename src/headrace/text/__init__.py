"""Between text and tokens: tokenizers, chat templates, incremental detokenization, stop strings."""

from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import Detokenizer
from headrace.text.prompt import Prompt, chat_prompt, text_prompt, token_prompt
from headrace.text.stop import StopMatcher
from headrace.text.stream import MessageDelta, MessageStream, StopWatch
from headrace.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "MessageDelta",
    "MessageStream",
    "Prompt",
    "StopMatcher",
    "StopWatch",
    "Tokenizer",
    "chat_prompt",
    "load_tokenizer",
    "text_prompt",
    "token_prompt",
]
