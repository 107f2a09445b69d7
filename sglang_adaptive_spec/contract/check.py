"""Checks the contract table against a host, and says in one sentence why a host is refused.

The one idea: a host that lacks one symbol of the table, or has it with another signature, is
refused before it serves; one outside the tested window that matches is used with a warning.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sglang_adaptive_spec import __version__
from sglang_adaptive_spec.contract.source import Found, HostSource, render
from sglang_adaptive_spec.contract.table import CONTRACT, Kind, Symbol
from sglang_adaptive_spec.contract.versions import (
    HOST,
    NOT_INSTALLED,
    PLUGIN,
    SUPPORTED,
    HostInfo,
    installed_host,
    is_supported,
)

MISSING = "missing"
# Mismatches written out in the refusal sentence; the rest is counted.
SHOWN_MISMATCHES = 3


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between the contract and a host."""

    symbol: str
    expected: str
    found: str
    why: str

    def __str__(self) -> str:
        return f"{self.symbol}: expected {self.expected}, found {self.found} (used to {self.why})"


@dataclass(frozen=True, slots=True)
class ContractReport:
    """The outcome of a check: refuse unless `ok`; a message on an ok report is a warning."""

    ok: bool
    version: str
    in_window: bool
    mismatches: tuple[Mismatch, ...]
    message: str


def check(
    source_root: Path, contract: Iterable[Symbol] = CONTRACT, package: str = HOST
) -> list[Mismatch]:
    """Returns every difference between the contract and the package unpacked under a folder."""
    source = HostSource(source_root, package)
    mismatches = []
    with collector_off():
        for symbol in contract:
            difference = _difference(symbol, find_symbol(source, symbol))
            if difference is not None:
                mismatches.append(Mismatch(symbol.path, *difference, symbol.why))
    return mismatches


@contextmanager
def collector_off() -> Iterator[None]:
    """Leaves garbage where it is: walking a million fresh nodes again and again took half the time.

    Of 2.7 s for the contract, of 13 s for `check -- ARGUMENTS` 4 s (CPU time, one core).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def find_symbol(source: HostSource, symbol: Symbol) -> Found | None:
    """Returns what a host declares for one symbol of the contract, or None."""
    found = (_find(source, symbol, name) for name in symbol.names)
    return next((each for each in found if each is not None), None)


def _find(source: HostSource, symbol: Symbol, name: str) -> Found | None:
    if not symbol.declared_in:
        return source.find(symbol.module, name)
    owner, _, member = name.partition(".")
    if source.find(symbol.module, owner) is None:
        return None
    for place in symbol.declared_in:
        module, _, declaring = place.partition(":")
        found = source.find(module, f"{declaring}.{member}")
        if found is not None:
            return found
    return None


def contract_report(
    host: HostInfo | None = None, contract: Iterable[Symbol] = CONTRACT
) -> ContractReport:
    """Checks a host, by default the installed one, and words the outcome."""
    host = host or installed_host()
    if host is None:
        return ContractReport(
            ok=False,
            version=NOT_INSTALLED,
            in_window=False,
            mismatches=(),
            message=f"{PLUGIN} needs SGLang, which is not installed: {_remedy()}.",
        )
    mismatches = tuple(check(host.root, contract))
    in_window = is_supported(host.version)
    return ContractReport(
        ok=not mismatches,
        version=host.version,
        in_window=in_window,
        mismatches=mismatches,
        message=_message(host.version, mismatches, in_window=in_window),
    )


def installed_report() -> ContractReport:
    """Returns the report of the installed host, which takes a second or two, once a process."""
    return _report_of(installed_host())


@cache
def _report_of(host: HostInfo | None) -> ContractReport:
    return contract_report(host)


def _message(version: str, mismatches: tuple[Mismatch, ...], *, in_window: bool) -> str:
    plugin = f"{PLUGIN} {__version__}"
    if mismatches:
        shown = "; ".join(map(str, mismatches[:SHOWN_MISMATCHES]))
        more = len(mismatches) - SHOWN_MISMATCHES
        rest = f"; and {more} more (`{PLUGIN} check` lists them)" if more > 0 else ""
        return f"{plugin} refuses sglang {version}, which differs in {shown}{rest}. {_remedy()}."
    if not in_window:
        return (
            f"{plugin} is not tested with sglang {version} (tested: {SUPPORTED}); every host symbol"
            f" it uses is there with the expected signature, so it goes on. {_remedy()}."
        )
    return ""


def _remedy() -> str:
    return f"Supported: sglang{SUPPORTED} (pip install 'sglang{SUPPORTED}')"


def _difference(symbol: Symbol, found: Found | None) -> tuple[str, str] | None:
    """Returns (expected, found) in words, or None where the host keeps the contract."""
    if found is None:
        return _expected(symbol), MISSING
    if not symbol.signatures:
        return _attribute_difference(symbol, found)
    if found.parameters is None:
        return _expected(symbol), found.describe()
    passes = _same_list if symbol.kind is Kind.OVERRIDE else _accepts
    if any(passes(_parse(signature), found.parameters, symbol) for signature in symbol.signatures):
        return None
    return _expected(symbol), found.describe()


def _attribute_difference(symbol: Symbol, found: Found) -> tuple[str, str] | None:
    is_other_shape = symbol.kind is Kind.OVERRIDE and found.shape != "property"
    if found.shape == "function" or is_other_shape:
        return _expected(symbol), found.describe()
    if symbol.kind is Kind.WRITE and not found.is_writable:
        return _expected(symbol), found.describe()
    return None


def _expected(symbol: Symbol) -> str:
    if symbol.signatures:
        verb = "" if symbol.kind is Kind.OVERRIDE else "a function that takes "
        return verb + " or ".join(f"({signature})" for signature in symbol.signatures)
    if symbol.kind is Kind.OVERRIDE:
        return "a property"
    return "a writable attribute" if symbol.kind is Kind.WRITE else "a class or an attribute"


def _parse(signature: str) -> ast.arguments:
    expression = ast.parse(f"lambda {signature}: 0", mode="eval").body
    assert isinstance(expression, ast.Lambda)
    return expression.args


def _same_list(ours: ast.arguments, hosts: ast.arguments, _symbol: Symbol) -> bool:
    return render(ours, with_defaults=False) == render(hosts, with_defaults=False)


def _accepts(ours: ast.arguments, hosts: ast.arguments, symbol: Symbol) -> bool:
    """Says whether a host's function can be called, or is called, as the table says."""
    positional = _names(ours.args)
    keywords = _names(ours.kwonlyargs)
    hosts_plain = _names([*hosts.posonlyargs, *hosts.args])
    by_keyword = {*_names(hosts.args), *_names(hosts.kwonlyargs)} - set(positional)
    if hosts_plain[: len(positional)] != positional:
        return False
    takes_any = symbol.kind is Kind.CALL and hosts.kwarg is not None
    if not takes_any and not set(keywords) <= by_keyword:
        return False
    if symbol.kind is Kind.HOOK:
        return True
    required = hosts_plain[: len(hosts_plain) - len(hosts.defaults)]
    required += [
        argument.arg
        for argument, default in zip(hosts.kwonlyargs, hosts.kw_defaults, strict=True)
        if default is None
    ]
    return set(required) <= {*positional, *keywords}


def _names(arguments: list[ast.arg]) -> list[str]:
    return [argument.arg for argument in arguments]
