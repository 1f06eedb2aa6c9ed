"""Backups in an S3 bucket. Credentials, region and endpoint come from the environment, never from the URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from headwater import limits
from headwater.store.embedded.backup.failures import BackupError, MissingError, TargetError

_DELETED_AT_ONCE = 1_000  # limit of the API


class S3Target:
    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        with self._failures(prefix):
            parameters = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
            if after:
                parameters["StartAfter"] = self._prefix + after
            pages = self._client.get_paginator("list_objects_v2").paginate(**parameters)
            sizes = {item["Key"]: int(item["Size"]) for page in pages for item in page.get("Contents", ())}
        return {key.removeprefix(self._prefix): size for key, size in sorted(sizes.items())}

    def is_empty(self) -> bool:
        with self._failures(""):
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        return not page.get("Contents")

    def get(self, name: str) -> bytes:
        with self._failures(name):
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        return data

    def put(self, name: str, data: bytes) -> None:
        with self._failures(name):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def create(self, name: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        with self._failures(name):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
                    return False
                raise
        return True

    def remove(self, names: Iterable[str]) -> None:
        left = [{"Key": self._prefix + name} for name in names]
        for start in range(0, len(left), _DELETED_AT_ONCE):
            with self._failures(""):
                some = {"Objects": left[start : start + _DELETED_AT_ONCE], "Quiet": True}
                answer = self._client.delete_objects(Bucket=self._bucket, Delete=some)
            if answer.get("Errors"):
                raise TargetError(self.url, f"{answer['Errors'][0].get('Key')} was not deleted")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """A bucket has no locks. The lock in the data directory excludes other backups of the same directory, and
        parts of other directories have other names."""
        yield

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            fault = error.response.get("Error", {})
            if fault.get("Code") in ("NoSuchKey", "404"):
                raise MissingError(self.url, name) from None
            raise TargetError(self.url, f"{fault.get('Code')}, {fault.get('Message')}") from None
        except (BotoCoreError, OSError) as error:
            raise TargetError(self.url, str(error).rstrip(".")) from None


def open_bucket(url: str) -> S3Target:
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise BackupError("an S3 URL is s3://bucket/prefix. Set credentials in the environment (AWS_ACCESS_KEY_ID …).")
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise BackupError("S3 needs boto3. Install it with: pip install '.[s3]' in a checkout of Headwater") from None
    config = Config(
        connect_timeout=limits.BACKUP_CONNECT_S,
        read_timeout=limits.BACKUP_ANSWER_S,
        retries={"mode": "standard", "max_attempts": 3},
        max_pool_connections=limits.BACKUP_COPIES_AT_ONCE + 2,
    )
    try:
        client = boto3.client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise BackupError(f"S3: {str(error).rstrip('.')}. Set AWS_REGION and the credentials.") from None
    prefix = parts.path.strip("/")
    return S3Target(client, parts.netloc, f"{prefix}/" if prefix else "")
