# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: an exception for each status of the library."""
import enum
import re
from typing import Dict, Optional, Type


class Status(enum.IntEnum):
    """The library's gr_status. What a failure destroys: -1 to -19 this call alone, -20 to -39 a
    peer, -40 to -59 the communicator, -60 and below the process."""

    OK = 0
    PENDING = 1
    INVALID = -1
    NO_MEMORY = -2
    AGAIN = -3
    NOT_FOUND = -4
    IO = -5
    TIMEOUT = -6
    UNSUPPORTED = -7
    CANCELLED = -8
    NOT_FINITE = -9
    PEER_LOST = -20
    PEER_SLOW = -21
    PROTOCOL = -22
    AUTH = -23
    IN_USE = -24
    MISMATCH = -40
    COMM_BROKEN = -41
    ABORTED = -42
    BUG = -60


class Error(RuntimeError):
    """A call failed. Its text is a sentence: what is wrong, where, what to do.

    status     a Status
    sentence   the text without the operation
    rank       the rank that says so, None where there is none yet
    peer       the rank that the failure is about, None where it is about none
    operation  what was called, "allreduce" say
    """

    status: Status = Status.BUG

    def __init__(self, sentence: str, *, rank: Optional[int] = None, peer: Optional[int] = None,
                 operation: str = "", status: Optional[Status] = None) -> None:
        super().__init__(sentence, rank, peer, operation)
        self.sentence = sentence
        self.rank = rank
        self.peer = peer
        self.operation = operation
        if status is not None:
            self.status = status

    def __reduce__(self):  # exceptions travel between processes, by gradus.run
        return _rebuild, (type(self), self.sentence, self.rank, self.peer, self.operation,
                          self.status)

    def __str__(self) -> str:
        if not self.operation or re.match(rf"{re.escape(self.operation)}\b", self.sentence):
            return self.sentence
        return f"{self.operation}: {self.sentence}"

    @property
    def usable(self) -> bool:
        """Whether the communicator, or the connection, may still be used."""
        return -20 < self.status


def _rebuild(kind, sentence, rank, peer, operation, status):
    return kind(sentence, rank=rank, peer=peer, operation=operation, status=status)


class InvalidError(Error, ValueError):
    """An argument, a file or a setting is wrong. Nothing has begun."""

    status = Status.INVALID


class NoMemoryError(Error, MemoryError):
    """An allocation failed, or a named limit is reached."""

    status = Status.NO_MEMORY


class AgainError(Error):
    """Nothing happened; the call may be made again."""

    status = Status.AGAIN


class NotFoundError(Error, LookupError):
    """A file, a key or a name does not exist."""

    status = Status.NOT_FOUND


class SystemRefusedError(Error):
    """The operating system refused."""

    status = Status.IO


class TimeoutError(Error, TimeoutError):  # noqa: A001
    """A deadline of the call passed."""

    status = Status.TIMEOUT


class UnsupportedError(Error):
    """The library, this machine or this link cannot do it."""

    status = Status.UNSUPPORTED


class CancelledError(Error):
    """It ended because the communicator was closed."""

    status = Status.CANCELLED


class NotFiniteError(Error, ArithmeticError):
    """NaN or infinity where a finite number must stand."""

    status = Status.NOT_FINITE


class PeerLostError(Error, ConnectionError):
    """A rank, or a server, died or cannot be reached."""

    status = Status.PEER_LOST


class PeerSlowError(Error):
    """A rank did not come within the operation's deadline."""

    status = Status.PEER_SLOW


class ProtocolError(Error):
    """A peer sent what no correct peer sends."""

    status = Status.PROTOCOL


class AuthError(Error):
    """A peer does not hold the job's secret."""

    status = Status.AUTH


class InUseError(Error):
    """Another process has this rank, or this number, already."""

    status = Status.IN_USE


class MismatchError(Error):
    """Ranks called different operations. The sentence names what each did."""

    status = Status.MISMATCH


class BrokenError(Error):
    """An earlier failure ended the communicator. The sentence tells the first one, which is
    __cause__."""

    status = Status.COMM_BROKEN


class AbortedError(Error):
    """A rank ended the communicator by abort()."""

    status = Status.ABORTED


class BugError(Error):
    """An invariant of the library does not hold: please report it."""

    status = Status.BUG


_KINDS: Dict[int, Type[Error]] = {
    int(kind.status): kind
    for kind in (InvalidError, NoMemoryError, AgainError, NotFoundError, SystemRefusedError,
                 TimeoutError, UnsupportedError, CancelledError, NotFiniteError, PeerLostError,
                 PeerSlowError, ProtocolError, AuthError, InUseError, MismatchError, BrokenError,
                 AbortedError, BugError)
}


def error_of(status: int, sentence: str, *, rank: Optional[int] = None,
             peer: Optional[int] = None, operation: str = "") -> Error:
    """The exception of a status; one that is newer than this package becomes a plain Error."""
    if status in _KINDS:
        return _KINDS[status](sentence, rank=rank, peer=peer, operation=operation)
    return Error(f"{sentence} (status {status})", rank=rank, peer=peer, operation=operation)
