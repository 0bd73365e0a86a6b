"""A local server that speaks S3, and how to reach it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import ThreadedMotoServer

BUCKET = "histories"


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Yields the options by which s3fs finds it; everything in it is gone afterwards."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "key": "anyone",
            "secret": "anything",
        }
    finally:
        server.stop()
