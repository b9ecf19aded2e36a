"""The definition of one observable or control, and tables of them.

A table gives a name its meaning once: from it come the attributes of a dataset's variables and the labels of axes. What
is called ``<name>_err``, ``<name>_trace`` or ``<name>_draws`` follows from ``<name>``, unless it has an entry itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import xarray as xr


@dataclass(frozen=True)
class Observable:
    """What a name means: one line of the table of observables.

    Parameters
    ----------
    name
        Of the variable or coordinate in a dataset.
    long_name
        In a few words, as an axis is labelled.
    description
        The definition with its normalisation, in a sentence or two.
    symbol
        In LaTeX, without dollars; none where there is no established one.
    units
        As netCDF has them: "1" where it is dimensionless; none of a text.
    formula
        In plain text; it ends the description.
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
        """The attributes of a variable of this name; what is not known is left out."""
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
        """What an axis says: words and symbol."""
        return label_of(self.long_name, self.symbol)


Table = Mapping[str, Observable]


def table(*entries: Observable) -> dict[str, Observable]:
    """Entries by their names, each of which must occur once."""
    found = {entry.name: entry for entry in entries}
    if len(found) < len(entries):
        twice = {entry.name for entry in entries if entry is not found[entry.name]}
        raise ValueError(f"every name must have one meaning in a table, got two of {', '.join(sorted(twice))}")
    return found


def definition(name: str, own: Table) -> Observable | None:
    """The entry of a name in a table, or what follows for an error, a trace or draws; None where nothing is known."""
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


#: Ending of a name -> what its long name and its description say.
_DERIVED = {
    "_err": ("error of {}", "Numerical error of {}, an estimate of its size."),
    "_trace": ("{}", "{} after every iteration."),
    "_draws": ("{}", "Every draw of {}."),
}


def with_attributes(ds: xr.Dataset, own: Table) -> xr.Dataset:
    """The dataset with the attributes of all variables and coordinates that are defined; what they have they keep.

    What nobody has defined gets its name in words, so that plots have a label.
    """
    described = ds.copy(deep=False)
    for name in map(str, ds.variables):
        entry = definition(name, own)
        attrs = {"long_name": name.replace("_", " ")} if entry is None else entry.attrs
        described[name].attrs = {**attrs, **ds[name].attrs}
    return described


def label_of(long_name: str, symbol: str = "") -> str:
    """Words and symbol, as an axis has them."""
    return f"{long_name} ${symbol}$" if symbol else long_name
