import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from api.blobs.local import LocalBlobs
from api.blobs.s3 import PART_BYTES, S3Blobs
from api.blobs.store import BlobStore, MissingBlobError, StorageError

S3_OPTIONS = {
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
    "aws_region": "us-east-1",
}


@pytest.fixture(scope="module")
def s3_address() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["local", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return LocalBlobs(tmp_path / "blobs")
    address = request.getfixturevalue("s3_address")
    bucket = f"bucket-{uuid4().hex}"
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=bucket)
    config = S3_OPTIONS | {"aws_endpoint": address}
    return S3Blobs(f"s3://{bucket}/files", config=config, client_options={"allow_http": True})


def keep(blobs: BlobStore, directory: Path, content: bytes) -> str:
    path = directory / uuid4().hex
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    blobs.keep(path, sha256)
    assert path.read_bytes() == content
    path.unlink()
    return sha256


@pytest.mark.parametrize("size", [0, 10, PART_BYTES + 5])
def test_what_is_kept_can_be_read_whole_and_in_part(blobs: BlobStore, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    sha256 = keep(blobs, tmp_path, content)
    assert blobs.has(sha256)
    assert b"".join(blobs.read(sha256)) == content
    if size:
        assert b"".join(blobs.read(sha256, 3, 8)) == content[3:8]
        assert b"".join(blobs.read(sha256, size - 4)) == content[-4:]


def test_the_same_content_is_kept_once_and_is_young_again(blobs: BlobStore, tmp_path: Path) -> None:
    sha256 = keep(blobs, tmp_path, b"same")
    assert keep(blobs, tmp_path, b"same") == sha256
    [(found, since)] = list(blobs.kept())
    assert found == sha256
    assert abs(datetime.now(UTC) - since) < timedelta(minutes=10)


def test_what_is_dropped_is_gone(blobs: BlobStore, tmp_path: Path) -> None:
    sha256 = keep(blobs, tmp_path, b"content")
    blobs.drop(sha256)
    blobs.drop(sha256)
    assert not blobs.has(sha256)
    assert list(blobs.kept()) == []
    with pytest.raises(MissingBlobError):
        list(blobs.read(sha256))


def test_a_blob_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    source = tmp_path / "source"
    source.write_bytes(b"content")

    def power_cut(_: int) -> None:
        assert not blobs.has("a" * 64)  # the name comes after the bytes are on the disk
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(StorageError, match="no space left"):
        blobs.keep(source, "a" * 64)
    assert list(blobs.kept()) == []
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_a_bucket_that_is_not_there_is_an_error_of_the_store(s3_address: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    missing = S3Blobs(
        "s3://no-such-bucket",
        config=S3_OPTIONS | {"aws_endpoint": s3_address},
        client_options={"allow_http": True},
    )
    with pytest.raises(StorageError):
        missing.keep(source, "a" * 64)
