"""What the files of a history are called, and where their columns begin; imports nothing, for those in a hurry."""

MANIFEST, PREVIOUS = "manifest.json", "manifest.previous.json"

# The head of a column file is padded to a page, so that rows as wide as pages lie on whole ones.
HEAD_BYTES = 4096


def log_name(number: int, *, local: bool) -> str:
    return f"log-{number:08d}" + (".bin" if local else "")
