"""Whether the server in this container answers: the health check of the image, which has no curl.

The options are those of the server: the environment, and the file that HEADWATER_CONFIG names. Flags of the command
are not known here, so set address, port and TLS there.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

from headwater.errors import HeadwaterError
from headwater.server.settings import Settings, load_settings

WAIT_S = 2.0
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # of a server on every address


def main() -> int:
    try:
        settings = load_settings({}, os.environ).settings
    except (HeadwaterError, OSError) as error:
        sys.stderr.write(f"the options are not valid: {error}\n")
        return 1
    host = _LOOPBACK.get(settings.host, settings.host)
    try:
        connection = connect(host, settings)
        connection.request("GET", "/healthz", headers={"host": "localhost"})  # which every server accepts
        return 0 if connection.getresponse().status == 200 else 1
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"no answer from {host} on port {settings.port}: {error}\n")
        return 1


def connect(host: str, settings: Settings) -> http.client.HTTPConnection:
    if settings.tls_certificate is None:
        return http.client.HTTPConnection(host, settings.port, timeout=WAIT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate is for another name
    return http.client.HTTPSConnection(host, settings.port, timeout=WAIT_S, context=context)


if __name__ == "__main__":
    sys.exit(main())
