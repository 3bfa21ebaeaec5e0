"""How the command line reads the fields of models that are not numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...datasets.arguments import known_or_nearest

__all__ = ["Choice", "Constructor", "Setting"]

# From text on the command line to the value of a field; a ValueError says what was expected.
type Setting = Callable[[str], Any]


@dataclass(frozen=True)
class Choice:
    """A choice of one word of several, with a value for each.

    Parameters
    ----------
    values : mapping of str to object
        By the word.

    Examples
    --------
    >>> from milzoo.models.parts.settings import Choice
    >>> Choice({"true": True, "false": False})("true")
    True
    """

    values: Mapping[str, object]

    @classmethod
    def of(cls, *words: str) -> Choice:
        """A choice whose values are the words themselves."""
        return cls({word: word for word in words})

    def __call__(self, text: str) -> object:
        """The value of a word.

        Raises
        ------
        ValueError
            If the word is unknown, with the nearest known one.
        """
        if text in self.values:
            return self.values[text]
        raise ValueError(known_or_nearest(text, self.values))


@dataclass(frozen=True)
class Constructor:
    """A constructor by its word, with its numbers: ``gamma:1,2.5``.

    Parameters
    ----------
    constructors : mapping of (str, int) to callable
        By the word and how many numbers it comes with.
    expected : str
        The accepted text, for the error message.

    Examples
    --------
    >>> from milzoo.models.parts.settings import Constructor
    >>> Constructor({("range", 2): range}, "range:FIRST,LAST")("range:1")
    Traceback (most recent call last):
    ...
    ValueError: expected range:FIRST,LAST
    """

    constructors: Mapping[tuple[str, int], Callable[..., Any]]
    expected: str

    def __call__(self, text: str) -> Any:
        """Call the constructor.

        Raises
        ------
        ValueError
            If the word is unknown, or is not followed by the right count of numbers.
        """
        word, _, rest = text.partition(":")
        parts = rest.split(",") if rest else []
        try:
            constructor = self.constructors[word, len(parts)]
            numbers = [float(part) for part in parts]
        except (KeyError, ValueError):
            words = dict.fromkeys(known for known, _ in self.constructors)
            near = get_close_matches(word, words, n=1, cutoff=0.4)
            is_misspelt = word not in words and near
            hint = f"did you mean {near[0]!r}?" if is_misspelt else f"expected {self.expected}"
            raise ValueError(hint) from None
        return constructor(*(int(of) if of.is_integer() else of for of in numbers))
