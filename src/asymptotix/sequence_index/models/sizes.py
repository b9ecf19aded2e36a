"""Check of the size of an attention model against the memory."""

from __future__ import annotations

from ...numerics.memory import refuse_beyond_memory


def refuse_large_attention(layers: int, heads: int, tokens: int, rows: int) -> None:
    """Raise MemoryError if the index rows and attention matrices of a few samples do not fit into memory."""
    samples = 64
    numbers = rows * tokens + layers * heads * tokens**2
    what = f"attention with {rows} index rows and {layers * heads} attention matrices of {tokens} tokens"
    refuse_beyond_memory(8 * samples * numbers, f"{what}, {samples} samples at a time,", "smaller sizes")
