"""Options that are text, read without pydantic: its import is a third of a short command."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    _Parsing = TyperCommand
else:
    _Parsing = object


class _Plain(_Parsing):
    """Asks Typer to read only what is more than text, a word of a list, or absent.

    What Typer makes of a text is the text; it imports pydantic to find that out, even of an option
    that nobody gave.
    """

    def get_params(self, ctx: Any) -> Any:
        """The parameters, help too; a version of Typer that does not say their types reads all."""
        params = super().get_params(ctx)
        for param in params:
            kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
            if kind is not None and "process_value" not in vars(param):
                reading = partial(_value, param, kind, param.process_value)
                param.process_value = reading  # type: ignore[method-assign]  # Typer makes them
        return params


class PlainCommand(_Plain, TyperCommand):
    """A command whose options are read so."""


class PlainGroup(_Plain, TyperGroup):
    """The same of what stands before the commands."""


def _value(param: Any, kind: Any, by_typer: Callable[..., Any], context: Any, given: Any) -> object:
    """What was given, as the command takes it; what is missing or wrong is Typer's to say."""
    taken: object
    if given is None and not param.required:
        taken = () if param.multiple or param.nargs == -1 else None
    elif kind is str and isinstance(given, str):
        taken = given
    elif kind == list[str] and isinstance(given, (list, tuple)) and given:
        taken = [*given]
    elif isinstance(kind, type) and issubclass(kind, StrEnum) and given in list(kind):
        taken = kind(given)
    else:
        return by_typer(context, given)
    return param.callback(context, param, taken) if param.callback else taken
