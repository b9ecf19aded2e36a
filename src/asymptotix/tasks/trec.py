"""TREC questions as word pieces of bert-base-uncased, to be classified by the kind of answer.

A line of the files is ``COARSE:fine words of the question ?``. A question becomes

    [CLS] pieces of its words in lower case, without accents [SEP] [PAD] [PAD] ...

cut to ``length`` tokens. The questions are from Li and Roth, COLING 2002; the experiment is from Troiani et al.,
arXiv:2502.00901, section 4 and appendix F. In the text BERT gives the embeddings; in the authors' code BERT gives only
the tokens, and embeddings are learned. This code pads questions to the longest of a thousand, which is nearly always
cut to 32 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..numerics import checks
from .stored.locate import stored_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Coarse classes, in the order of their labels.
CLASSES = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
#: Stream of the task's seed from which the held-out questions are drawn.
_SPLIT = 1
#: The only byte of the files that is not ASCII; it stands between two words.
_STRAY_BYTE = b"\xf0"


@dataclass(frozen=True, eq=False)
class TrecTask:
    """Questions as token numbers, and their classes.

    Attributes
    ----------
    tokens : array (examples, length) of int32
        Training questions, as numbers of word pieces in the vocabulary.
    labels : array (examples,) of int32
        Positions of the classes in ``classes``.
    validation_tokens, validation_labels
        Tokens and labels of the held-out part of the 5,452 questions.
    test_tokens, test_labels
        Tokens and labels of the 500 questions of TREC 10.
    vocabulary_size : int
    classes : tuple of str
    """

    tokens: np.ndarray
    labels: np.ndarray
    validation_tokens: np.ndarray
    validation_labels: np.ndarray
    test_tokens: np.ndarray
    test_labels: np.ndarray
    vocabulary_size: int
    classes: tuple[str, ...] = CLASSES


def trec(
    seed: int = 0,
    *,
    length: int = 32,
    training_share: float = 0.8,
    directory: Path | None = None,
    verify: bool = True,
) -> TrecTask:
    """Read the TREC questions, cut them into word pieces and hold out a part of them.

    This needs the package ``tokenizers`` (``pip install "asymptotix[data]"``) and the data sets trec and bert-vocab.

    Parameters
    ----------
    seed : int
        Seed of the split into training and validation.
    length : int
        Number of tokens per question, with [CLS] and [SEP]: longer questions are cut, shorter ones padded.
    training_share : float
        Share of the questions to train on, rounded down.
    directory : path, optional
        Directory of the data; else ``$ASYMPTOTIX_DATA``, else the cache of ``asymptotix data get``.
    verify : bool
        Whether files must be the published ones; False accepts stand-ins of the same name and format.

    Examples
    --------
    >>> task = asx.tasks.trec(seed=0)                                       # doctest: +SKIP
    >>> task.tokens.shape, task.validation_tokens.shape                     # doctest: +SKIP
    ((4361, 32), (1091, 32))
    """
    seed = checks.integer("seed", seed, 0)
    length = checks.integer("length", length, 3)
    share = checks.share("training_share", training_share)
    names = (("trec", "train_5500.label"), ("trec", "TREC_10.label"), ("bert-vocab", "vocab.txt"))
    train, test, vocabulary = (stored_file(data_set, name, directory, verify=verify) for data_set, name in names)
    tokenizer = word_pieces(vocabulary, length)
    tokens, labels = _encoded(train, tokenizer)
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(tokens))
    count = int(share * len(tokens))
    if not 0 < count < len(tokens):
        raise ValueError(f"training_share={share} of {len(tokens)} questions leaves {count} to train on")
    kept, held = order[:count], order[count:]
    parts = (tokens[kept], labels[kept], tokens[held], labels[held], *_encoded(test, tokenizer))
    return TrecTask(*parts, vocabulary_size=tokenizer.get_vocab_size())


def read_questions(path: Path) -> tuple[list[str], np.ndarray]:
    """Return the questions in a label file of TREC, and an int32 array of the positions of their classes in CLASSES.

    Raises
    ------
    ValueError
        If a line is no question of one of the six classes. The message has the number of the line.
    """
    texts, labels = [], []
    for number, line in enumerate(path.read_bytes().replace(_STRAY_BYTE, b" ").splitlines(), start=1):
        label, _, text = line.decode("latin-1").strip().partition(" ")
        coarse, colon, _ = label.partition(":")
        if coarse not in CLASSES or not colon or not text:
            expected = f"COARSE:fine question, COARSE being one of {', '.join(CLASSES)}"
            raise ValueError(f"{path}, line {number} must be {expected}; got {line[:80]!r}")
        texts.append(text)
        labels.append(CLASSES.index(coarse))
    return texts, np.array(labels, dtype=np.int32)


def word_pieces(vocabulary: Path, length: int) -> Tokenizer:
    """Return the tokenizer of bert-base-uncased: lower case, no accents, cut and padded to ``length`` tokens.

    ``vocabulary`` is a file with one word piece per line.
    """
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer
        from tokenizers.processors import BertProcessing
    except ImportError as error:
        message = 'the questions of TREC need the package tokenizers: pip install "asymptotix[data]"'
        raise ImportError(message) from error
    pieces = vocabulary.read_text(encoding="utf-8").splitlines()
    numbers = {piece: k for k, piece in enumerate(pieces)}
    if missing := [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if piece not in numbers]:
        raise ValueError(f"{vocabulary} must hold a word piece a line, and {', '.join(missing)} among them")
    tokenizer = Tokenizer(WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=numbers["[PAD]"], pad_token="[PAD]")
    return tokenizer


def token_numbers(texts: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    """Return the token numbers of texts, an array (texts, length) of int32."""
    return np.array([encoding.ids for encoding in tokenizer.encode_batch(list(texts))], dtype=np.int32)


def _encoded(path: Path, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    texts, labels = read_questions(path)
    return token_numbers(texts, tokenizer), labels
