"""The questions of TREC: word pieces by the vocabulary's numbers, padding, split; of stand-ins, and of the files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from asymptotix.tasks.trec import CLASSES, read_questions, token_numbers, trec, word_pieces
from fake_trec import VOCABULARY, write_trec

pytest.importorskip("tokenizers", reason="word pieces need the package tokenizers")

DATA = Path(os.environ.get("ASYMPTOTIX_DATA", "."))
needs_questions = pytest.mark.skipif(
    not ((DATA / "trec").is_dir() and (DATA / "bert_vocab").is_dir()),
    reason="ASYMPTOTIX_DATA names no directory with trec/ and bert_vocab/",
)


@pytest.fixture
def folder(tmp_path):
    return write_trec(tmp_path)


def pieces(numbers):
    return [VOCABULARY[k] for k in numbers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Played the river ?", "[CLS] play ##ed the river ? [SEP]"),
        ("UNPLAYABLE", "[CLS] [UNK] [SEP]"),  # ##play is not in the vocabulary, so that the word is not
        ("unable, playing", "[CLS] un ##able , play ##ing [SEP]"),
        ("Café  's", "[CLS] cafe ' s [SEP]"),  # accents go, punctuation is a word of its own
        ("a b a b a b a b", "[CLS] a b a b a b [SEP]"),  # cut to eight
    ],
)
def test_word_pieces(folder, text, expected):
    tokenizer = word_pieces(folder / "bert_vocab" / "vocab.txt", 8)
    (numbers,) = token_numbers([text], tokenizer)
    wanted = expected.split()
    assert pieces(numbers) == wanted + ["[PAD]"] * (8 - len(wanted))


def test_shapes_and_split(folder):
    task = trec(seed=0, directory=folder, verify=False, length=16)
    assert task.tokens.shape == (48, 16)
    assert task.validation_tokens.shape == (12, 16)
    assert task.test_tokens.shape == (12, 16)
    assert task.vocabulary_size == len(VOCABULARY)
    assert task.tokens.dtype == task.labels.dtype == np.int32
    texts, labels = read_questions(folder / "trec" / "train_5500.label")
    np.testing.assert_array_equal(labels, np.arange(60) % 6)
    numbers = token_numbers(texts, word_pieces(folder / "bert_vocab" / "vocab.txt", 16))
    rows = np.concatenate([np.c_[task.labels, task.tokens], np.c_[task.validation_labels, task.validation_tokens]])
    ours, all_of_them = (sorted(map(tuple, table)) for table in (rows, np.c_[labels, numbers]))
    assert ours == all_of_them  # every question once, with its own label
    for row, label in zip(task.tokens, task.labels, strict=True):
        assert pieces(row)[1] == ("letters", "animal", "why", "who", "where", "how")[label]


def test_seeds_split_differently_and_each_the_same_way(folder):
    first, again, other = (trec(seed=seed, directory=folder, verify=False) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


def test_stand_ins_are_refused_unless_asked_for(folder):
    with pytest.raises(ValueError, match=r"train_5500.label is not the published file"):
        trec(directory=folder)


def test_bad_files(folder):
    path = folder / "trec" / "train_5500.label"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b":fine") + 3])
    with pytest.raises(ValueError, match=r"train_5500.label, line 60 must be COARSE:fine question.*got b'NUM:fi'"):
        trec(directory=folder, verify=False)
    path.write_bytes(whole.replace(b"\nHUM:fine", b"\nHUM", 1))
    with pytest.raises(ValueError, match=r"train_5500.label, line 4 must be COARSE:fine question.*got b'HUM Who"):
        trec(directory=folder, verify=False)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="leaves 0 to train on"):
        trec(directory=folder, verify=False)
    path.write_bytes(whole)
    (folder / "bert_vocab" / "vocab.txt").write_text("the\nriver\n")
    with pytest.raises(ValueError, match=r"vocab.txt must hold a word piece a line, and \[PAD\], \[UNK\]"):
        trec(directory=folder, verify=False)


def test_bad_input(folder, monkeypatch):
    with pytest.raises(ValueError, match="length must be an integer of at least 3, got 2"):
        trec(length=2, directory=folder, verify=False)
    with pytest.raises(ValueError, match=r"training_share must be in \(0, 1\), got 1"):
        trec(training_share=1.0, directory=folder, verify=False)
    monkeypatch.delenv("ASYMPTOTIX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "empty"))
    monkeypatch.setenv("HOME", str(folder / "empty"))
    with pytest.raises(FileNotFoundError, match="asymptotix data get trec"):
        trec()


def greedy(word, vocabulary):
    """The longest piece that fits, again and again."""
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        start = end
    return found


@needs_questions
def test_every_published_question_is_cut_as_the_rules_say():
    """All of it is ASCII, so that rules written in a few lines suffice: words and single signs, the longest piece."""
    names = (DATA / "bert_vocab" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: k for k, piece in enumerate(names)}
    texts, labels = read_questions(DATA / "trec" / "train_5500.label")
    assert len(texts) == 5452
    assert dict(zip(CLASSES, np.bincount(labels), strict=True)) == {
        "ABBR": 86, "ENTY": 1250, "DESC": 1162, "HUM": 1223, "LOC": 835, "NUM": 896,
    }  # fmt: skip
    found = token_numbers(texts, word_pieces(DATA / "bert_vocab" / "vocab.txt", 32))
    for text, row in zip(texts, found, strict=True):
        words = re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower())
        wanted = [piece for word in words for piece in greedy(word, vocabulary)][:30]
        numbers = [101, *(vocabulary[piece] for piece in wanted), 102]
        assert row.tolist() == numbers + [0] * (32 - len(numbers)), text
    first = "[CLS] how did ser ##f ##dom develop in and then leave russia ? [SEP]"
    assert [names[k] for k in found[0] if k] == first.split()


@needs_questions
def test_the_published_files():
    task = trec(seed=3)
    assert task.tokens.shape == (4361, 32)  # 273 batches of 16: the 10,920 steps of 40 epochs
    assert task.validation_tokens.shape == (1091, 32)
    assert np.bincount(task.test_labels).tolist() == [9, 94, 138, 65, 81, 113]
    assert len(np.unique(np.concatenate([task.tokens, task.validation_tokens]))) == 8489  # "8700" in the paper
