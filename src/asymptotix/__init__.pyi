# The one table of public names: where each is defined. `__init__.py` reads it, and imports a module when one of its
# names is first asked for; type checkers and editors read it as it is.
__all__: list[str]

from . import figures as figures
from . import tasks as tasks
from ._version import __version__ as __version__
from .attention_index.algorithms.adam import Adam as Adam
from .attention_index.algorithms.matrix_amp import MatrixAMP as MatrixAMP
from .attention_index.model import AttentionIndex as AttentionIndex
from .attention_index.risk import RiskMinimization as RiskMinimization
from .attention_index.spectra.targets import Atoms as Atoms
from .attention_index.spectra.targets import Empirical as Empirical
from .attention_index.spectra.targets import MarchenkoPastur as MarchenkoPastur
from .attention_index.spectra.targets import PowerLaw as PowerLaw
from .attention_index.spectra.targets import Target as Target
from .attention_paths.heads import empirical_order_parameter as empirical_order_parameter
from .attention_paths.heads import head_scores as head_scores
from .attention_paths.network.attended_inputs import AttendedInputs as AttendedInputs
from .attention_paths.network.path_network import AttentionPaths as AttentionPaths
from .attention_paths.network.weights import Weights as Weights
from .attention_paths.posterior import PathPosterior as PathPosterior
from .attention_paths.pruning import prune as prune
from .attention_paths.sampling.nuts import NUTS as NUTS
from .bayes_optimal import BayesOptimal as BayesOptimal
from .core import plot as plot
from .core.compare import Comparison as Comparison
from .core.compare import compare as compare
from .core.gradient import gradient as gradient
from .core.gradient import optimum as optimum
from .core.problem import Algorithm as Algorithm
from .core.problem import Outcome as Outcome
from .core.problem import Problem as Problem
from .core.result import ConvergenceWarning as ConvergenceWarning
from .core.result import Result as Result
from .core.result import load as load
from .core.specification import Specification as Specification
from .core.status import Status as Status
from .core.verbs import simulate as simulate
from .core.verbs import solve as solve
from .core.verbs import thresholds as thresholds
from .sequence_index.algorithms.gamp import GAMP as GAMP
from .sequence_index.algorithms.relaxed_bp import RelaxedBP as RelaxedBP
from .sequence_index.algorithms.sgd import SGD as SGD
from .sequence_index.models.deep_attention import DeepAttention as DeepAttention
from .sequence_index.models.infinite_depth import InfiniteDepthAttention as InfiniteDepthAttention
from .sequence_index.models.link import MultiIndex as MultiIndex
from .sequence_index.models.link import SequenceIndex as SequenceIndex
