"""The one family of errors that users can cause; each message names the invariant, what came and the remedy."""


class RecollectError(Exception):
    """Something the caller can put right. The command line prints it as one line and exits with 1."""


class SettingError(RecollectError):
    """Settings that do not go together, or a value outside its range."""


class CheckpointError(RecollectError):
    """A checkpoint that is missing, damaged or of another run."""


class OutputExistsError(RecollectError):
    """A result that would be overwritten."""
