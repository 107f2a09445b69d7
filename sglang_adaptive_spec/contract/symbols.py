"""How one row of the contract is written: what the plugin does to a host symbol, and what for.

Signatures are Python parameter lists without annotations. Their meaning depends on the kind:
HOOK and CALL name what we pass: parameters before `*` by position, in the host's order, those after
it by keyword; a CALL also names every parameter that has no default. The call of a class names the
fields of that dataclass.
OVERRIDE repeats the host's whole list; several lists mean that each is known from a tested release.
An OVERRIDE without a list redefines a property.

A name may be `new|old` where a tested release has it under an older one. host/ takes whichever is
there, in one place (CONTRIBUTING.md); the old name goes with the last release that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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

    module: str
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
        """The dotted path, as the host's HookRegistry spells it."""
        return f"{self.module}.{self.name}"


Row = tuple[Kind, str, str, *tuple[str, ...]]  # kind, name, why, signatures ...


def of(owner: str, *rows: Row, declared_in: tuple[str, ...] = ()) -> tuple[Symbol, ...]:
    """Returns the symbols of one class ("module:Class") or module ("module")."""
    module, _, class_name = owner.partition(":")
    prefix = f"{class_name}." if class_name else ""
    symbols = []
    for kind, written, why, *signatures in rows:
        name, *former = (prefix + each for each in written.split("|"))
        symbols.append(
            Symbol(module, name, kind, why, tuple(signatures), declared_in, tuple(former))
        )
    return tuple(symbols)
