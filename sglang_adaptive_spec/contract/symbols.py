"""How a row of the contract is read: what the plugin does to a host symbol, and what for.

Rows stand in text files, in the order of the host's files: written in Python, most took three lines
or more. A row is one line below the class ("module:Class") or module that has it:

    sglang.srt.managers.scheduler:Scheduler
      hook get_internal_state(self, recv_req): show tiers and counters in /server_info
      read server_args, draft_worker: reach the worker

Signatures are Python parameter lists without annotations. Their meaning depends on the kind:
HOOK and CALL name what we pass: parameters before `*` by position, in the host's order, those after
it by keyword; a CALL also names every parameter that has no default. The call of a class names the
fields of that dataclass. In a file of C++, which stands by its path, all are passed by position.
OVERRIDE repeats the host's whole list; several, joined by `or`, are known from tested releases.
An OVERRIDE without a list redefines a property.

A name may be `new|old` where a tested release has it under an older one. host/ takes whichever is
there, in one place (CONTRIBUTING.md); the old name goes with the last release that has it.
A line "in place ..." below a class names the classes that declare its members where it does not;
a first word that ends in "." is put before the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """How the plugin touches a symbol."""

    HOOK = "hook"  # wrapped through the host's HookRegistry
    OVERRIDE = "override"  # redefined, in a subclass that calls super() or in a stand-in
    CALL = "call"
    READ = "read"
    WRITE = "write"  # assigned (and read)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol of the host."""

    module: str  # dotted, or the path of a file of C++
    name: str  # function, constant, Class or Class.member
    kind: Kind
    why: str
    signatures: tuple[str, ...] = ()
    # Classes ("module:Class") that declare the member when its own class is built elsewhere;
    # declared in any one of them is enough.
    declared_in: tuple[str, ...] = ()
    former_names: tuple[str, ...] = ()  # of older tested releases; like ``name``

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a tested release may have it under, the newest first."""
        return (self.name, *self.former_names)

    @property
    def path(self) -> str:
        """The dotted path, as the host's HookRegistry spells it; of C++, the file and the name."""
        return f"{self.module}{':' if '/' in self.module else '.'}{self.name}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of a function that takes all by position."""
        (signature,) = self.signatures
        return tuple(signature.split(", "))


def rows_of(file: str) -> tuple[Symbol, ...]:
    """Returns the rows of a file beside this one."""
    return tuple(read_rows(Path(__file__).with_name(file).read_text()))


def read_rows(text: str) -> Iterator[Symbol]:
    """Yields the symbols of a text of rows, one for each name."""
    module, prefix = "", ""
    places: tuple[str, ...] = ()
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word in ("", "#"):
            continue
        if line.startswith(" "):
            declaration, _, why = rest.partition(": ")
            for names, signatures in _declared(declaration):
                name, *former = (prefix + each for each in names)
                yield Symbol(module, name, Kind(word), why, signatures, places, tuple(former))
        elif word == "in":
            places += _places(rest.split())
        else:
            module, _, owner = line.partition(":")
            prefix, places = f"{owner}." if owner else "", ()


def _declared(text: str) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Yields (names, signatures): of one function, or of attributes."""
    names, is_function, lists = text.partition("(")
    signatures = tuple(lists.removesuffix(")").split(") or (")) if is_function else ()
    for name in names.split(", "):
        yield name.split("|"), signatures


def _places(words: list[str]) -> tuple[str, ...]:
    before, *after = words
    return tuple(before + each for each in after) if before.endswith(".") else tuple(words)
