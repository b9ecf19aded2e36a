"""Stand-ins for the questions of TREC and for the vocabulary, in the same formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from asymptotix.tasks.trec import CLASSES

#: A word for each class, by which it is told; and others.
TELLING = ("letters", "animal", "why", "who", "where", "how")
OTHERS = ("the", "play", "##ed", "##ing", "un", "##able", "cafe", "river", "a", "b", "?", ",", "'", "s", "in")
VOCABULARY = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", *TELLING, *OTHERS)


def write_trec(folder: Path, questions: int = 60, seed: int = 0) -> Path:
    """A directory of data with label files of ``questions`` and 12 lines."""
    rng = np.random.default_rng(seed)
    for name, count in (("train_5500.label", questions), ("TREC_10.label", 12)):
        lines = []
        for k in range(count):
            words = rng.choice(["The", "played", "playing", "river", "a", "b", "unplayed"], rng.integers(1, 6))
            lines.append(f"{CLASSES[k % 6]}:fine {TELLING[k % 6].capitalize()} {' '.join(words)} ?")
        path = folder / "trec" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    path = folder / "bert_vocab" / "vocab.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return folder
