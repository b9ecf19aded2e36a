"""Laws of the eigenvalues of the target matrix S_0: one name for where all of them are found."""

from .discrete_targets import Atoms as Atoms
from .discrete_targets import Empirical as Empirical
from .marchenko_pastur import MarchenkoPastur as MarchenkoPastur
from .power_law import PowerLaw as PowerLaw
from .target import Target as Target
