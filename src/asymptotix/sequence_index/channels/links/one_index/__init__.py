"""Links of one index and one token: sums over pieces of the line, and averages by deterministic quadrature."""
