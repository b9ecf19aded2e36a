"""The definition of one observable or control, and tables of them.

A table defines each name once; the attributes of a dataset's variables and the labels of axes are derived from it. The
definitions of ``<name>_err``, ``<name>_trace`` (values at every iteration) and ``<name>_draws`` follow from ``<name>``,
unless they have their own entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import xarray as xr


@dataclass(frozen=True)
class Observable:
    """The definition of one variable or coordinate of a result.

    Parameters
    ----------
    name
        Name of the variable or coordinate in a dataset.
    long_name
        Short phrase for the label of an axis.
    description
        The definition with its normalisation, in a sentence or two.
    symbol
        LaTeX without dollars; "" where there is no established symbol.
    units
        Units in the netCDF convention: "1" for a dimensionless number, "" for text.
    formula
        Formula in plain text; it is appended to the description.
    reference
        Paper and equation.

    Examples
    --------
    >>> q = Observable("q", "squared norm", "Of the learned matrix.", symbol="q", formula="q = Tr(S^2)/d")
    >>> q.label, q.attrs["description"]
    ('squared norm $q$', 'Of the learned matrix. q = Tr(S^2)/d.')
    """

    name: str
    long_name: str
    description: str
    symbol: str = ""
    units: str = "1"
    formula: str = ""
    reference: str = ""

    @property
    def attrs(self) -> dict[str, str]:
        """The attributes, name -> text, that a variable of a dataset gets from this definition; no empty ones."""
        known = {
            "long_name": self.long_name,
            "units": self.units,
            "description": " ".join(filter(None, (self.description, self.formula and f"{self.formula}."))),
            "symbol": self.symbol,
            "reference": self.reference,
        }
        return {name: text for name, text in known.items() if text}

    @property
    def label(self) -> str:
        """The label of an axis: long name and symbol."""
        return label_of(self.long_name, self.symbol)


Table = Mapping[str, Observable]


def table(*entries: Observable) -> dict[str, Observable]:
    """Return a table, name -> definition, of these definitions; raise a ValueError if a name occurs twice."""
    found = {entry.name: entry for entry in entries}
    if len(found) < len(entries):
        twice = {entry.name for entry in entries if entry is not found[entry.name]}
        raise ValueError(f"every name must have one meaning in a table, got two of {', '.join(sorted(twice))}")
    return found


def definition(name: str, own: Table) -> Observable | None:
    """Return a name's definition in the table ``own``, for an error, a trace or draws a derived one; else None."""
    if name in own:
        return own[name]
    for suffix, (words, sentence) in _DERIVED.items():
        base = definition(name.removesuffix(suffix), own) if name.endswith(suffix) else None
        if base is not None:
            symbol = rf"\delta {base.symbol}" if suffix == "_err" and base.symbol else base.symbol
            return replace(
                base,
                name=name,
                symbol=symbol,
                long_name=words.format(base.long_name),
                description=f"{sentence.format(base.name)} {base.description}",
            )
    return None


#: Ending of a name -> templates of its long name and of the start of its description.
_DERIVED = {
    "_err": ("error of {}", "Numerical error of {}, an estimate of its size."),
    "_trace": ("{}", "{} after every iteration."),
    "_draws": ("{}", "Every draw of {}."),
}


def with_attributes(ds: xr.Dataset, own: Table) -> xr.Dataset:
    """Return the dataset with attributes for all variables and coordinates; existing ones are not replaced.

    An undefined name becomes its own long name, so that plots have a label.
    """
    described = ds.copy(deep=False)
    for name in map(str, ds.variables):
        entry = definition(name, own)
        attrs = {"long_name": name.replace("_", " ")} if entry is None else entry.attrs
        described[name].attrs = {**attrs, **ds[name].attrs}
    return described


def label_of(long_name: str, symbol: str = "") -> str:
    """Return the label of an axis: the long name and, unless it is empty, the symbol (LaTeX without dollars)."""
    return f"{long_name} ${symbol}$" if symbol else long_name
