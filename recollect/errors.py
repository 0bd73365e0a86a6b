"""The one family of errors that users can cause; each message names the invariant, what came and the remedy."""

import errno


class RecollectError(Exception):
    """Something the caller can put right. The command line prints it as one line and exits with 1."""


class SettingError(RecollectError):
    """Settings that do not go together, or a value outside its range."""


class CheckpointError(RecollectError):
    """A checkpoint that is missing, damaged or of another run."""


class OutputExistsError(RecollectError):
    """A result that would be overwritten."""


class KeyFunctionError(RecollectError):
    """A key function that can't be read or fitted, or features it was not made for."""


class DataError(RecollectError):
    """A table that can't be read as it was declared, or whose columns can't be told apart."""


class BadRowError(DataError):
    """A row that can't be read, named by file and line."""


class HistoryError(RecollectError):
    """A history that is missing, of another kind than asked for, or asked for what it does not hold."""


class HistoryDamagedError(HistoryError):
    """A file of a history that is cut, changed or gone although the history names it."""


class HistoryLockedError(HistoryError):
    """A second writer where only one may be."""


class ItemError(HistoryError):
    """Items that do not fit the history they are meant for; nothing of them was written."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)


def told(error: OSError) -> str | None:
    """What the operating system refused, with the remedy; None where it is nothing that a user can put right."""
    place = "" if error.filename is None else f" ({error.filename})"
    if error.errno in FULL:
        return f"the disk is full{place}: free some space, or choose another place"
    if error.errno in FORBIDDEN:
        return f"that may not be written or read{place}: ask for permission, or choose another place"
    if error.errno in NO_SUCH_PLACE:
        return f"{(error.strerror or 'no such place').lower()}{place}: check the path, or choose another place"
    return None
