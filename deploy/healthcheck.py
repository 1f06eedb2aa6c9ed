"""Whether the server in this container answers: the health check of the image, which has no curl."""

from __future__ import annotations

import http.client
import os
import ssl
import sys

PORT = int(os.environ.get("HEADWATER_PORT") or 4437)
TLS = os.environ.get("HEADWATER_TLS_CERTIFICATE")
WAIT_S = 2.0


def main() -> int:
    if TLS:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is for another name than 127.0.0.1
        connection = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=WAIT_S, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=WAIT_S)
    try:
        connection.request("GET", "/healthz")
        return 0 if connection.getresponse().status == 200 else 1
    except OSError as error:
        sys.stderr.write(f"no answer on port {PORT}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
