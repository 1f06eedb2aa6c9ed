"""The floor of a sink over HTTP: tasks send the bytes of their rows to a server that writes and syncs them once.

Nothing is parsed, checked, compressed, kept for readers or appended in order, and a repeated task
stores its rows twice. `python -m bench.uploading DIRECTORY` is the server.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.servers import Server, running
from headwater.client.columns.texts import join
from headwater.limits import SPARK_REQUEST_BYTES

FILE_BYTES = 256 * 1024 * 1024  # allocated, and written again and again, as the journal does with its segments


class Uploading(DataSource):
    """A sink for the column `value`. The option `port` is that of the server."""

    @classmethod
    def name(cls) -> str:
        return "uploading"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _UploadingWriter(int(self.options["port"]))


class _UploadingWriter(DataSourceArrowWriter):
    def __init__(self, port: int) -> None:
        self._port = port

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        bodies, size = list[bytes](), 0
        for rows in iterator:
            bodies.append(join(rows.column("value").cast(pa.binary()), b","))
            size += len(bodies[-1])
            if size > SPARK_REQUEST_BYTES:
                _post(connection, bodies)
                bodies, size = [], 0
        if bodies:
            _post(connection, bodies)
        connection.close()
        return WriterCommitMessage()


def _post(connection: http.client.HTTPConnection, bodies: list[bytes]) -> None:
    connection.request("POST", "/", b",".join(bodies))
    response = connection.getresponse()
    response.read()
    if response.status != http.client.NO_CONTENT:
        raise RuntimeError(f"the server of the bench answered with {response.status}")


def uploading_server(directory: str) -> contextlib.AbstractContextManager[Server]:
    return running("a server that only stores", [sys.executable, "-m", "bench.uploading", directory])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    turn = threading.Lock()
    descriptor = position = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.turn:
            if _Handler.position + len(body) > FILE_BYTES:
                _Handler.position = 0
            _Handler.position += os.pwrite(self.descriptor, body, _Handler.position)
            os.fdatasync(self.descriptor)
        self.send_response(http.client.NO_CONTENT)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _serve(directory: str) -> None:
    with tempfile.TemporaryFile(dir=directory) as file:
        _Handler.descriptor = file.fileno()
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
            print(f"uploading server at http://127.0.0.1:{server.server_port}", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1])
