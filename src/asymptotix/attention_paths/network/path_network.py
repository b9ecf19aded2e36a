"""Deep multi-head attention, computed from the bare input in every layer: the network and its forward pass.

Tiberi et al., arXiv:2405.15926, eqs. (1) to (4), in full eqs. (14) to (18); written in attention paths eqs. (5) to (7),
in full eqs. (20) to (23). The paper states shape G x N for query and key weights; they act on the input: G x N0.

Equations ap-network, ap-attended, ap-kernel of docs/theory/attention_paths.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...core.specification import Specification
from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from .attended_inputs import AttendedInputs, Inputs, tokens_of
from .attending import attend, attend_bare, attention_matrices
from .given_arrays import checked_tokens, count_of, kind_of, per_layer, require_entries, shapes_of
from .weights import SCALINGS, Weights, checked_weights, path_products

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Largest numbers of layers, and of heads per layer, that are accepted: larger ones are taken for mistakes. Memory for
#: the order parameter usually sets a lower limit.
MOST_LAYERS, MOST_HEADS = 1000, 2**31


@dataclass(frozen=True, eq=False, init=False)
class AttentionPaths(Specification):
    """L layers of multi-head attention with linear values, and one or several readouts.

    For tokens x_1..x_T in R^{N0}, width N and attention Om^{l,h} computed from these tokens in every layer,

        z^1_t     = V0 x_t / sqrt(N0)
        z^{l+1}_t = (1/sqrt(N H_l)) sum_h sum_s V^{l,h} z^l_s Om^{l,h}_{st}
        f         = a . z^{L+1}_* / sqrt(N),      z_* = z_{t*}  or  (1/T) sum_t z_t.

    A path pi = (h_1, ..., h_L) takes one head in every layer. The output depends on x only through the attended inputs

        xi^pi = sum_{t_1..t_L} x_{t_1} Om^{1,h_1}_{t_1 t_2} Om^{2,h_2}_{t_2 t_3} ... Om^{L,h_L}_{t_L t*}.

    Give ``layers`` and ``heads`` if the attention matrices come with the data (:class:`AttendedInputs`). Give
    ``query_key`` to compute them: Om^{l,h}_{st} = softmax over the keys s of x_s^T W^{l,h} x_t, with no further scale.

    Parameters
    ----------
    layers : int, optional
        L; by default the number of layers in ``heads`` or ``query_key``.
    heads : int or sequence of int, optional
        H_l, one number for all layers or one per layer; by default 1, or the heads of ``query_key``.
    query_key : sequence of arrays (H_l, N0, N0), optional
        W^{l,h}, first layer first; rows belong to keys, columns to queries.
    readout : "mean" or int
        Average over the tokens, or the index t* of one token (negative: from the end).

    Attributes
    ----------
    layers : int
    heads : tuple of int
        H_1, ..., H_L.
    query_key : tuple of arrays or None
    readout : "mean" or int

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> rng = np.random.default_rng(0)
    >>> network = asx.AttentionPaths(query_key=[rng.standard_normal((2, 4, 4)), rng.standard_normal((3, 4, 4))])
    >>> network.heads, network.paths
    ((2, 3), 6)
    >>> network.attended(rng.standard_normal((5, 7, 4))).shape           # examples, paths, features
    (5, 6, 4)
    """

    layers: int
    heads: tuple[int, ...]
    query_key: tuple[np.ndarray, ...] | None
    readout: int | str

    # Written out, not generated, because the arguments have more forms (int, None) than the stored fields.
    def __init__(
        self,
        layers: int | None = None,
        heads: int | Sequence[int] | None = None,
        query_key: Sequence[ArrayLike] | None = None,
        readout: int | str = "mean",
    ) -> None:
        matrices = None if query_key is None else _query_key(query_key)
        counts = None if matrices is None else tuple(len(W) for W in matrices)
        own = _heads(layers, heads, counts)
        if counts not in (None, own):
            raise ValueError(f"heads must be those of query_key, {counts}, or left out, got {heads}")
        paths = math.prod(own)
        refuse_beyond_memory(8 * paths**2, f"the order parameter of {count_of(paths)} paths", "fewer heads or layers")
        object.__setattr__(self, "layers", len(own))
        object.__setattr__(self, "heads", own)
        object.__setattr__(self, "query_key", matrices)
        object.__setattr__(self, "readout", _readout(readout))

    @classmethod
    def from_queries_and_keys(
        cls,
        queries: Sequence[ArrayLike],
        keys: Sequence[ArrayLike],
        readout: int | str = "mean",
        *,
        scaling: str = "order one",
    ) -> Self:
        """Return a network whose attention has separate query and key weights, as in a trained transformer.

        Parameters
        ----------
        queries, keys : sequences of arrays (H_l, G, N0)
            WQ^{l,h} and WK^{l,h}, first layer first; their size G may differ between layers. Rows are outputs, as in
            ``torch.nn.Linear.weight``: stack one per head without transposing, or reshape one matrix for all heads,
            (H G, N0), to (H, G, N0). There are no biases: give the tokens a feature that is 1.
        readout : "mean" or int
            Average over the tokens, or the index of one token.
        scaling : "order one" or "fan_in"
            Size of the entries. "order one" is the paper's scaling: queries and keys are each divided by the square
            root of their fan-in N0, so the scores are (1/(N0 sqrt(G))) x_s^T WK^T WQ x_t. "fan_in" is the scaling of
            trained networks, w = W/sqrt(N0): queries are w_Q x_t, keys are w_K x_s and scores are q . k / sqrt(G),
            that is W^{l,h} = w_K^T w_Q / sqrt(G).

        Examples
        --------
        >>> import numpy as np
        >>> import asymptotix as asx
        >>> rng = np.random.default_rng(0)
        >>> queries, keys = rng.standard_normal((2, 1, 2, 8, 16))        # one layer, two heads, G = 8, N0 = 16
        >>> paper = asx.AttentionPaths.from_queries_and_keys(queries, keys)
        >>> own = asx.AttentionPaths.from_queries_and_keys(queries / 4, keys / 4, scaling="fan_in")
        >>> bool(np.allclose(own.query_key[0], paper.query_key[0]))
        True
        """
        checks.one_of("scaling", scaling, SCALINGS)
        shape = "(heads, G, features)"
        WQ, WK = per_layer("queries", queries, shape), per_layer("keys", keys, shape)
        if len(WQ) != len(WK):
            raise ValueError(f"keys must have {len(WQ)} layers, as many as queries, got {len(WK)}")
        matrices = []
        for layer, (given_q, given_k) in enumerate(zip(WQ, WK, strict=True)):
            q = checks.array_of_shape(f"queries[{layer}]", given_q, (None, None, None))
            require_entries(f"queries[{layer}]", q)
            k = checks.array_of_shape(f"keys[{layer}]", given_k, q.shape)
            fan_in = q.shape[2] if scaling == "order one" else 1
            matrices.append(k.swapaxes(-1, -2) @ q / (fan_in * math.sqrt(q.shape[1])))
        return cls(query_key=matrices, readout=readout)

    def __repr__(self) -> str:
        attention = "" if self.query_key is None else f"query_key: {shapes_of(self.query_key)}; "
        return f"AttentionPaths({attention}heads={self.heads}, readout={self.readout!r})"

    @property
    def paths(self) -> int:
        """Number of paths, d = prod_l H_l."""
        return math.prod(self.heads)

    def check(self, inputs: Inputs) -> None:
        """Raise an error that names the fault if this network cannot read the inputs (tokens or AttendedInputs)."""
        if isinstance(inputs, AttendedInputs):
            self._check_heads(inputs)
            self._read_tokens(inputs.tokens.shape[1])
        else:
            self._read_tokens(self._own_tokens(inputs)[0].shape[1])

    def attention(self, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the attention matrices of the tokens, computed with ``query_key``.

        Parameters
        ----------
        tokens : array (examples, T, N0)

        Returns
        -------
        tuple of arrays (examples, H_l, T, T)
            Om^{l,h}_{st}, first layer first; the key s is the third axis, the query t the last.
        """
        return attention_matrices(*self._own_tokens(tokens))

    def attended(self, inputs: Inputs) -> np.ndarray:
        """Return the attended inputs xi^pi of every example and path, eq. (7), at a cost of T^2 + N0 T each.

        Parameters
        ----------
        inputs : array (examples, T, N0) or AttendedInputs
            Tokens suffice if the network has ``query_key``; otherwise the inputs must contain the attention matrices.

        Returns
        -------
        array (examples, paths, N0)
            Paths in the order of their heads, the first layer's head slowest.
        """
        examples, _, features = np.shape(tokens_of(inputs))
        what = f"attending {examples} examples along {self.paths} paths"
        refuse_beyond_memory(16 * examples * self.paths * features, what, "fewer examples at a time, heads or layers")
        if isinstance(inputs, AttendedInputs):
            self._check_heads(inputs)
            return attend(inputs.tokens, inputs.attention, self._read_tokens(inputs.tokens.shape[1]))
        x, query_key = self._own_tokens(inputs)
        return attend_bare(x, query_key, self._read_tokens(x.shape[1]))

    def path_kernels(self, inputs: Inputs, other: Inputs | None = None) -> np.ndarray:
        """Return the kernels C_{pi pi'}(x, x') = xi^pi(x) . xi^pi'(x') / N0 of every pair of paths, eq. (10).

        The array has d^2 P P' numbers: use it to inspect small problems. No other function needs it.

        Parameters
        ----------
        inputs : array (examples, T, N0) or AttendedInputs
            x.
        other : array (examples', T, N0) or AttendedInputs, optional
            x'; by default ``inputs``.

        Returns
        -------
        array (paths, paths, examples, examples')
        """
        first = self.attended(inputs).swapaxes(0, 1)
        second = first if other is None else self.attended(other).swapaxes(0, 1)
        if first.shape[-1] != second.shape[-1]:
            raise ValueError(f"other must have {first.shape[-1]} features, as inputs have, got {second.shape[-1]}")
        rows, columns = first.shape[1], second.shape[1]
        what = f"path_kernels of {self.paths} x {self.paths} paths on {rows} x {columns} examples"
        instead = "fewer examples at a time, or attended(), which holds the same in less memory"
        refuse_beyond_memory(8 * self.paths**2 * rows * columns, what, instead)
        kernels = first[:, None] @ second[None].swapaxes(-1, -2)
        kernels /= first.shape[-1]
        return kernels

    def effective_weights(self, weights: Weights) -> np.ndarray:
        """Return one row of weights per path, Veff^pi = a^T V^{L,h_L} ... V^{1,h_1} / sqrt(N_2 ... N_L N_a).

        V^{l,h} are the value matrices, a is the readout, V0 the projection of the tokens and xi^pi an attended input.
        N_l is the input width of layer l, and N_a is the input width of the readout. Then

            f = (1/sqrt(H_1 ... H_L N_1 N0)) sum_pi Veff^pi V0 xi^pi,

        and the order parameter is the mean of Veff^pi . Veff^pi' / N_1: eqs. (6), (5) and (13).

        Parameters
        ----------
        weights : Weights
            Entries of order one.

        Returns
        -------
        array (paths, N_1), or (paths, C, N_1) for C outputs
            The first layer's head varies slowest.
        """
        checked = checked_weights(weights, self.heads)
        return path_products(checked) / math.sqrt(math.prod(V.shape[1] for V in checked.V))

    def forward(self, weights: Weights, inputs: Inputs) -> np.ndarray:
        """Return the outputs f, computed layer by layer.

        Parameters
        ----------
        weights : Weights
            Entries of order one; this function divides by the square roots of the widths.
        inputs : array (examples, T, N0) or AttendedInputs

        Returns
        -------
        array (examples,), or (examples, C) for C outputs
        """
        if isinstance(inputs, AttendedInputs):
            self._check_heads(inputs)
            x, attention = inputs.tokens, inputs.attention
        else:
            x = checked_tokens("inputs", inputs)
            attention = self.attention(x)
        values = checked_weights(weights, self.heads, x.shape[-1])
        z = x @ values.V0.T / math.sqrt(x.shape[-1])
        for V, A in zip(values.V, attention, strict=True):
            mixed = A.swapaxes(-1, -2) @ z[:, None]
            z = (mixed @ V.swapaxes(-1, -2)).sum(axis=1) / math.sqrt(z.shape[-1] * len(V))
        read = z[:, self._read_tokens(x.shape[1])].mean(axis=1)
        return read @ values.a.T / math.sqrt(values.a.shape[-1])

    def _own_tokens(self, tokens: object) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        if self.query_key is None:
            raise ValueError(
                "inputs must be AttendedInputs(tokens, attention=...): this network has no query_key to compute "
                f"attention with, got {kind_of(tokens)}"
            )
        x = checked_tokens("inputs", tokens)
        features = self.query_key[0].shape[-1]
        if x.shape[-1] != features:
            raise ValueError(f"inputs must have {features} features, the size of query_key, got shape {x.shape}")
        return x, self.query_key

    def _check_heads(self, inputs: AttendedInputs) -> None:
        given = tuple(A.shape[1] for A in inputs.attention)
        if given != self.heads:
            raise ValueError(f"inputs.attention must have {self.heads} heads, the network's, got {given}")

    def _read_tokens(self, length: int) -> slice:
        """Return the slice of the ``length`` tokens that the readout averages over."""
        if isinstance(self.readout, str):
            return slice(None)
        if not -length <= self.readout < length:
            raise ValueError(f"readout must be a token index below {length}, the number of tokens, got {self.readout}")
        t = self.readout % length
        return slice(t, t + 1)


def _query_key(given: object) -> tuple[np.ndarray, ...]:
    matrices = []
    for layer, W in enumerate(per_layer("query_key", given, "(heads, features, features)")):
        name = f"query_key[{layer}]"
        features = matrices[0].shape[-1] if matrices else None
        matrix = checks.array_of_shape(name, W, (None, features, features))
        require_entries(name, matrix)
        if matrix.shape[1] != matrix.shape[2]:
            raise ValueError(f"{name} must have shape (heads, features, features), got {matrix.shape}")
        matrices.append(matrix)
    return tuple(matrices)


def _heads(layers: object, heads: Any, counts: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return H_1, ..., H_L from the arguments; ``counts`` are the numbers of heads in query_key, or None."""
    L = None if layers is None else checks.integer("layers", layers, 1, MOST_LAYERS)
    if heads is None:
        heads = 1 if counts is None else counts
    is_row = isinstance(heads, Sequence | np.ndarray) and not isinstance(heads, str)
    if is_row and checks.dimensions("heads", heads) == 1 and len(heads):
        if len(heads) > MOST_LAYERS:
            raise ValueError(f"heads must be of at most {MOST_LAYERS} layers, got {len(heads)}")
        own = tuple(checks.integer(f"heads[{layer}]", H, 1, MOST_HEADS) for layer, H in enumerate(heads))
        if L not in (None, len(own)):
            raise ValueError(f"layers must be {len(own)}, the number of layers that heads or query_key has, got {L}")
        return own
    H = checks.integer("heads", heads, 1, MOST_HEADS)
    if counts is not None:
        L = len(counts) if L is None else L
    if L is None:
        raise ValueError("layers must be given, or heads as one number per layer, or query_key; got none of them")
    return (H,) * L


def _readout(readout: object) -> int | str:
    if isinstance(readout, str):
        return checks.one_of("readout", readout, ("mean",))
    return checks.integer("readout", readout)
