"""The figures of Troiani, Cui, Dandi, Krzakala, Zdeborova, arXiv:2502.00901: Bayes-optimal deep attention."""
