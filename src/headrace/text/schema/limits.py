"""What a schema may cost. Whoever sends one is not trusted."""

from __future__ import annotations

MAX_CHARACTERS = 256 << 10  # of all strings and numbers together
MAX_VALUES = 50_000  # JSON values in the whole document
MAX_NESTING = 100  # arrays and objects within each other
MAX_SUBSCHEMAS = 2000
MAX_PATTERNS = 8  # that one string or key has to be told apart by
MAX_KEY_KINDS = 64  # of the keys that an object may have beside those it names
MAX_ALTERNATIVES = 256  # of one value
MAX_MERGES = 20_000  # of alternatives with each other
MAX_GOALS = 2000  # different combinations of subschemas
MAX_ARRAY_STATES = 400  # that `contains` makes of the places in an array
MAX_COUNT = 10**15  # of characters, items or properties
MAX_OBJECT_STATES = 4000  # that counts make of the keys of an object
MAX_WITNESSES = 64  # ways in which an object can have what it must have some of
MAX_LISTED_ARRAYS = 256  # that are written out one by one
MAX_LISTED_KEYS = 200  # that `propertyNames` lists
MAX_UNIQUE_VALUES = 64  # bits of the library's parameter of a rule
MAX_NUMBER_DIGITS = 400  # of an integer
MAX_BOUND_DIGITS = 100  # of a bound of a range, written without exponent
MAX_RULES = 5000
MAX_SOURCE = 2 << 20  # characters of the grammar
