"""A local server with the interface of S3, and the environment of its clients."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from unittest import mock

import pytest

NEEDS_LANCE = pytest.mark.skipif(find_spec("lance") is None, reason="pylance is not installed")


@contextmanager
def object_storage() -> Iterator[str]:
    """Starts the server; returns the address of a new bucket. The calling test is skipped if there is no server."""
    pytest.importorskip("lance", reason="pylance is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        port=0, verbose=False
    )
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with mock.patch.dict(os.environ, variables):
            boto3.client("s3").create_bucket(Bucket="indexes")
            yield "s3://indexes"
    finally:
        server.stop()
