"""Numerical tools that channels share: quadrature along lines, roots, proposals, moments of weighted draws."""
