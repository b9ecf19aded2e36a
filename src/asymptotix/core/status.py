"""The status with which the computation of a point ended: a code for programs, and a sentence for the user."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a point of a theory, a threshold, a derivative or a run of an algorithm ended.

    Programs compare the member; ``sentence`` is its text for the user, shown unless the point has a text of its own.
    ``converged`` has one meaning everywhere: the stated tolerance was met, and this was checked.

    Examples
    --------
    >>> Status.AT_BOUND.converged, Status.AT_BOUND.sentence
    (False, 'the search ended at its bound')
    """

    CONVERGED = "converged"
    EXACT_RECOVERY = "exact recovery"
    INACCURATE = "the numerical error exceeds the tolerance"
    NOT_CONVERGED = "not converged"
    AT_BOUND = "the search ended at its bound"
    NOT_VALID = "the theory is not valid here"
    WEAK_SAMPLE = "the sample is too weak to trust its errors"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_REACHED = "interrupted before this point"
    NO_RESULT = "the method returned nothing for this point"

    @property
    def sentence(self) -> str:
        """The text of the status."""
        return self.value

    @property
    def advice(self) -> str:
        """Advice on what the user can do; "" for a converged point.

        >>> Status.WEAK_SAMPLE.advice
        'run more draws or chains (seeds)'
        """
        return _ADVICE.get(self, "")

    def advice_for(self, kind: str) -> str:
        """Return the advice for a result of a kind: "theory", "thresholds" or "experiment".

        >>> Status.NOT_CONVERGED.advice_for("experiment")
        'more iterations, epochs or steps, or a larger dim'
        """
        if self is Status.NOT_CONVERGED:
            return _MORE_WORK if kind == "experiment" else _ANOTHER_START
        return self.advice

    @property
    def code(self) -> str:
        """The name of the status in files and in ``status_code``: lower case, such as "not_converged"."""
        return self.name.lower()

    @property
    def converged(self) -> bool:
        """Whether the stated tolerance was met and this was checked."""
        return self in (Status.CONVERGED, Status.EXACT_RECOVERY)

    @property
    def finished(self) -> bool:
        """Whether the point needs no more work. False where an interrupt stopped or prevented it."""
        return self not in (Status.INTERRUPTED, Status.NOT_REACHED)

    @classmethod
    def from_code(cls, code: str) -> Status:
        """Return the member with this ``code``; for an unknown one raise a ValueError that lists the known codes."""
        try:
            return cls[str(code).upper()]
        except KeyError:
            known = ", ".join(status.code for status in cls)
            raise ValueError(f"unknown status code {code!r}; known are {known}") from None

    @classmethod
    def from_words(cls, words: str, converged: bool) -> Status:
        """Return CONVERGED if ``converged``, else the member with whose sentence ``words`` begins, else NOT_CONVERGED.

        Only for files and theories without status codes.
        """
        if converged:
            return cls.CONVERGED
        begun = [status for status in cls if not status.converged and str(words).startswith(status.sentence)]
        return max(begun, key=lambda status: len(status.sentence), default=cls.NOT_CONVERGED)


def of_movement(what: str, change: float, limit: float, period: str, advice: str) -> tuple[Status, str]:
    """Return (status, sentence) of a run: CONVERGED if ``change`` <= ``limit``, else NOT_CONVERGED.

    ``what`` (subject and verb), ``period`` and ``advice`` are parts of the sentence:

    >>> of_movement("S still moves by", 0.02, 0.001, "per iteration", "increase iterations")[1]
    'not converged: S still moves by 0.02 per iteration (limit 0.001); increase iterations'
    """
    if change <= limit:
        return Status.CONVERGED, Status.CONVERGED.sentence
    return Status.NOT_CONVERGED, f"not converged: {what} {change:.2g} {period} (limit {limit:.2g}); {advice}"


_MORE_WORK = "more iterations, epochs or steps, or a larger dim"
_ANOTHER_START = "another alpha, a start nearby (start=) or a larger tolerance"
_ADVICE = {
    Status.INACCURATE: "the number is right to its <name>_err: use that, or accept it with a larger tolerance",
    Status.NOT_CONVERGED: f"in an experiment {_MORE_WORK}; in a theory {_ANOTHER_START}",
    Status.AT_BOUND: "what is sought lies beyond: widen the bounds",
    Status.NOT_VALID: "take the number for a conjecture, and check it by an experiment",
    Status.WEAK_SAMPLE: "run more draws or chains (seeds)",
    Status.FAILED: "remove the reason in the status, then repeat the call with resume=result",
    Status.INTERRUPTED: "repeat the call with resume=result to continue",
    Status.NOT_REACHED: "repeat the call with resume=result to compute it",
    Status.NO_RESULT: "a method must yield an outcome for every point it is given",
}
