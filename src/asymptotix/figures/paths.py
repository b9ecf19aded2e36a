"""The figures of Tiberi, Mignacco, Irie, Sompolinsky, arXiv:2405.15926: attention paths at finite width."""
