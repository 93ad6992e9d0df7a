"""Chooses the blob store that the settings name."""

from api.blobs.local import LocalBlobs
from api.blobs.store import BlobStore
from worker.settings import Settings, refuse

BLOBS = "blobs"  # in the data directory


def blob_store(config: Settings) -> BlobStore:
    """Return the store that HEADRACE_BLOB_URL names, by default a directory in HEADRACE_DATA_DIR.

    The process ends if it names a bucket and the library for buckets is not installed.
    """
    if config.blob_url is None:
        return LocalBlobs(config.data_dir / BLOBS)
    try:
        # Imported here, because a deployment with a local directory need not have the library for buckets.
        from api.blobs.s3 import S3Blobs  # noqa: PLC0415
    except ModuleNotFoundError:
        refuse("HEADRACE_BLOB_URL: a bucket needs another library: install headrace[s3]")
    return S3Blobs(config.blob_url)
