"""Deep multi-head attention at finite width, P = alpha N: Bayesian value weights, described path by path.

Tiberi, Mignacco, Irie, Sompolinsky, "Dissecting the interplay of attention paths in a statistical mechanics theory of
transformers", NeurIPS 2024, arXiv:2405.15926; cited below as Tiberi et al.
"""
