"""The data sets of the papers' experiments: files, addresses, checksums, licences.

The data are not part of this package. A checksum is the SHA-256 of the published file. For a gzip file there is also
the SHA-256 of its content, because repacked copies are common and as good. Of MNIST and Fashion-MNIST only the test
sets are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...numerics import checks

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_FASHION = (
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_OMNIGLOT = (
    "https://github.com/brendenlake/omniglot/raw/master/python/",
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
)
_TREC = ("https://cogcomp.seas.upenn.edu/Data/QA/QC/",)
_VOCABULARY = (
    "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/",
    "https://huggingface.co/bert-base-uncased/resolve/main/",
)


@dataclass(frozen=True)
class StoredFile:
    """One file of a data set.

    Attributes
    ----------
    name : str
        Name inside the folder of the data set.
    size : int
        Size in bytes.
    sha256 : str
        SHA-256 of the published file.
    content_sha256 : str or None
        SHA-256 of the content of a gzip file.
    addresses : tuple of str
        Beginnings of the addresses of the file, in the order of the attempts; the name is appended. Empty: the file is
        not published in this form, but may be on a disk.
    """

    name: str
    size: int
    sha256: str
    content_sha256: str | None = None
    addresses: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses from which the file can be downloaded."""
        return tuple(address + self.name for address in self.addresses)


@dataclass(frozen=True)
class StoredSet:
    """A data set: its folder and its files.

    Attributes
    ----------
    name, folder : str
        Name for the user, and folder inside a directory of data.
    shows : str
        Short description of the content.
    files : tuple of StoredFile
        Files that `asymptotix data get` fetches.
    instead : tuple of StoredFile
        Files of which each one alone replaces all ``files``.
    licence, citation : str
    """

    name: str
    folder: str
    shows: str
    files: tuple[StoredFile, ...]
    licence: str
    citation: str
    instead: tuple[StoredFile, ...] = ()

    def file(self, name: str) -> StoredFile:
        """Return the file of this data set called ``name``; the error for an unknown name lists the known ones."""
        known = {file.name: file for file in (*self.files, *self.instead)}
        return known[checks.one_of("name", name, tuple(known))]


def stored_set(name: str) -> StoredSet:
    """Return the data set of a name; the error for an unknown name lists the known ones."""
    return DATA_SETS[checks.one_of("data_set", name, tuple(DATA_SETS))]


_ALL = (
    StoredSet(
        name="omniglot",
        folder="omniglot",
        shows="1,623 handwritten characters of 50 alphabets, 20 drawings each, 105 x 105 pixels",
        files=(
            StoredFile(
                "images_background.zip",
                9_464_212,
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                addresses=_OMNIGLOT,
            ),
            StoredFile(
                "images_evaluation.zip",
                6_462_886,
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                addresses=_OMNIGLOT,
            ),
        ),
        instead=(
            StoredFile(
                "omniglot_105.npz", 4_330_243, "8d819896746a847883a6c6048b00d2366acaad93071acce2af047b8bf5d8fb5c"
            ),
        ),
        licence="MIT",
        citation="B. M. Lake, R. Salakhutdinov, J. B. Tenenbaum, Science 350 (2015) 1332",
    ),
    StoredSet(
        name="mnist",
        folder="mnist",
        shows="10,000 handwritten digits (the test set), 28 x 28 pixels",
        files=(
            StoredFile(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                _MNIST,
            ),
            StoredFile(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                _MNIST,
            ),
        ),
        licence="usually cited as CC BY-SA 3.0; none is stated upstream",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86 (1998) 2278",
    ),
    StoredSet(
        name="fashion-mnist",
        folder="fashion_mnist",
        shows="10,000 pictures of clothes (the test set), 28 x 28 pixels",
        files=(
            StoredFile(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                _FASHION,
            ),
            StoredFile(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                _FASHION,
            ),
        ),
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747",
    ),
    StoredSet(
        name="trec",
        folder="trec",
        shows="5,452 + 500 English questions in six coarse classes",
        files=(
            StoredFile(
                "train_5500.label",
                335_858,
                "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
                addresses=_TREC,
            ),
            StoredFile(
                "TREC_10.label",
                23_354,
                "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
                addresses=_TREC,
            ),
        ),
        licence="none is stated upstream; given for research",
        citation="X. Li, D. Roth, Learning question classifiers, COLING 2002",
    ),
    StoredSet(
        name="bert-vocab",
        folder="bert_vocab",
        shows="the 30,522 word pieces of bert-base-uncased",
        files=(
            StoredFile(
                "vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                addresses=_VOCABULARY,
            ),
        ),
        licence="Apache-2.0",
        citation="J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, arXiv:1810.04805",
    ),
)
DATA_SETS = {one.name: one for one in _ALL}
