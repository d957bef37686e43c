"""Files of a directory that lies elsewhere: on a path, behind a URL, or in an obstore store.

This is the only module that imports obstore. Credentials come from the environment, as obstore
reads them, or are inside a store that the user made; no message has more than scheme, bucket and
path.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StorageError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.base.files import fill_at, open_regular, page_aligned, read_small

R = TypeVar("R")

# Bytes of a request, and requests in flight: together the memory that a copy takes.
PIECE_BYTES = 16 * 2**20
REQUESTS_IN_FLIGHT = 16
_CHUNK_BYTES = 2**20
# Reads in flight of a copy between two disks, which keep both busy.
_READS_IN_FLIGHT = 4
# Objects that are written at a time, and parts of each that are on their way. A part has to arrive
# within `ANSWER_SECONDS`, also where the link is slow.
OBJECTS_IN_FLIGHT, _PARTS_IN_FLIGHT = 4, 2
PART_BYTES = 8 * 2**20
# Most parts of an object in S3.
_MAX_PARTS = 10_000

# Seconds until a server is given up that cannot be reached, from which nothing comes any more, or
# whose answer, slow as it is, does not end; and after which a request is not repeated.
CONNECT_SECONDS, ANSWER_SECONDS, REQUEST_SECONDS = 5, 60, 900
MAX_RETRIES, RETRY_SECONDS = 5, 120

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")
# Errors of obstore's stores where a file ends before a range, or a server gave fewer bytes.
_TOO_SHORT = re.compile(
    r"Generic \w+ error: (Requested range was invalid|Invalid range: Wanted range starting at \d+"
    r"|Requested \d+\.\.\d+, got \d+|.* status code: 416 )"
)
_WITHOUT_RANGES = re.compile(
    r"Operation not supported: Range request|Generic \w+ error: Received non-partial response"
)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRITE = "write s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or https://HOST/PATH"
# Variables that name an endpoint of a user's own, by scheme.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "https": (),
}
_SCHEME_OF = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az", "HTTPStore": "https"}
_OWN_STORE = "pass a store of obstore (obstore.store) in place of the URL"
_CREDENTIALS = {
    "s3": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public "
        "bucket; AWS_PROFILE and ~/.aws are not read: for these "
        f"{_OWN_STORE} with credential_provider=obstore.auth.boto3.Boto3CredentialProvider()"
    ),
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": (
        "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another credential, or "
        "AZURE_SKIP_SIGNATURE=true for a public container"
    ),
}

# The process that used obstore first: its threads are not in processes forked from it.
_used_by: list[int] = []


def is_elsewhere(place: object) -> bool:
    """Whether a place is a URL or a store of obstore, and not a path."""
    if isinstance(place, str | os.PathLike):
        return _SCHEME.match(os.fspath(place)) is not None
    return True


class Files(ABC):
    """The files of one directory, by relative path. Reads may come from several threads."""

    in_flight = REQUESTS_IN_FLIGHT  # reads that are worth making at a time
    scheme = ""

    def __init__(self, label: str) -> None:
        self.label = label  # of the directory, for messages; has no secret
        self._local = threading.local()  # a buffer for each thread

    def buffer(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the thread's memory, which disks can be written from directly."""
        found: npt.NDArray[np.uint8] | None = getattr(self._local, "buffer", None)
        if found is None or len(found) < num_bytes:
            found = self._local.buffer = page_aligned(max(num_bytes, 1))
        return found[:num_bytes]

    def name(self, name: str) -> str:
        """Return the whole name of a file, for messages."""
        return f"{self.label}/{name}".rstrip("/")

    @abstractmethod
    def read(self, name: str, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file: fewer where it ends, valid until the thread's next read."""

    @abstractmethod
    def read_small(self, name: str, max_bytes: int) -> bytes:
        """Return a small file whole; raises NotFoundError if there is none."""


class PathFiles(Files):
    """Files on a path."""

    in_flight = _READS_IN_FLIGHT

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def read(self, name: str, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file."""
        path, buffer = self.path / name, self.buffer(num_bytes)
        with storage_errors("read", path):
            try:
                file = open_regular(path)
            except FileNotFoundError:
                raise _missing(self, name) from None
            try:
                return buffer[: fill_at(file, buffer.data, offset)]
            finally:
                os.close(file)

    def read_small(self, name: str, max_bytes: int) -> bytes:
        """Return a small file whole."""
        path = self.path / name
        with storage_errors("read", path):
            if not path.exists():
                raise _missing(self, name)
        return read_small(path, max_bytes)


class ObjectFiles(Files):
    """Objects below a prefix of a bucket, through a store of obstore."""

    def __init__(self, store: Any, label: str, scheme: str = "") -> None:
        super().__init__(label)
        self.scheme = scheme
        self._store = store

    def read(self, name: str, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return bytes of an object, from one request."""
        buffer = self.buffer(num_bytes)

        def read() -> int:
            done = 0
            try:
                found = self._store.get(name, options={"range": (offset, offset + num_bytes)})
                # As they come: a request that is returned whole takes twice its bytes.
                for chunk in found.stream(min_chunk_size=_CHUNK_BYTES):
                    part = np.frombuffer(chunk, np.uint8)[: num_bytes - done]
                    buffer[done : done + len(part)] = part
                    done += len(part)
            except Exception as error:
                if not _TOO_SHORT.match(str(error)):
                    raise
            return done

        return buffer[: self._call("read", name, read)]

    def read_small(self, name: str, max_bytes: int) -> bytes:
        """Return a small object whole."""

        def read() -> bytes:
            found = self._store.get(name)
            if found.meta["size"] > max_bytes:
                raise CorruptStoreError(
                    f"{self.name(name)}: has {found.meta['size']} bytes, more than the {max_bytes} "
                    "that such a file may have",
                    path=self.name(name),
                )
            return bytes(found.bytes())

        return self._call("read", name, read)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each object, by relative path."""

        def sizes() -> dict[str, int]:
            return {each["path"]: each["size"] for page in self._store.list() for each in page}

        return self._call("list", "", sizes)

    def put(self, name: str, pieces: Iterator[bytes], num_bytes: int) -> None:
        """Write an object in parts; it appears whole, or not at all."""
        if num_bytes <= PART_BYTES:
            data = b"".join(pieces)
            self._call("write", name, lambda: self._store.put(name, data, use_multipart=False))
            return
        from obstore import open_writer  # noqa: PLC0415 - an extra

        part_bytes = max(PART_BYTES, -(-num_bytes // _MAX_PARTS))
        writer = self._call(
            "write",
            name,
            lambda: open_writer(
                self._store, name, buffer_size=part_bytes, max_concurrency=_PARTS_IN_FLIGHT
            ),
        )
        # Not a context: what is written would appear if an error ended it.
        for piece in pieces:
            self._call("write", name, partial(writer.write, piece))
        self._call("write", name, writer.close)

    def delete(self, names: list[str]) -> None:
        """Remove objects; one that is not there is passed over."""
        for name in names:
            try:
                self._call("remove", name, partial(self._store.delete, name))
            except NotFoundError:
                continue

    def names_below(self, directory: str) -> list[str]:
        """Return the names of what lies directly in a directory."""

        def names() -> list[str]:
            found = self._store.list_with_delimiter(f"{directory}/" if directory else None)
            return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

        return self._call("list", directory, names)

    def _call(self, doing: str, name: str, call: Callable[[], R]) -> R:
        """Make a call of obstore, and raise what goes wrong as an error with the object's name."""
        refuse_fork(self.label)
        try:
            return call()
        except (StorageError, CorruptStoreError, NotFoundError, UsageError):
            raise
        except FileNotFoundError:
            raise _missing(self, name) from None
        except Exception as error:  # of obstore's own kinds, or of a store that is like one
            self._fail(doing, name, error)

    def _fail(self, doing: str, name: str, error: Exception) -> NoReturn:
        kind, reason = type(error).__name__, _reason(error)
        advice = "check that the place can be reached from here, and try again"
        text = f"{kind} {error}"
        if any(word in text for word in ("PermissionDenied", "Unauthenticated", "169.254.169.254")):
            needed = _CREDENTIALS.get(self.scheme, "the ones that the store needs")
            advice = f"check the credentials: {needed}"
        elif _WITHOUT_RANGES.match(str(error)):
            reason = "this server does not answer ranges"
            advice = "fetch the directory by other means, and open its path"
        elif "redirect" in text.lower() and self.scheme == "s3":
            advice = "the bucket may lie in another region: set AWS_REGION"
        raise StorageError(
            f"cannot {doing} {self.name(name)}: {reason}; {advice}", path=self.name(name)
        ) from None  # the error of obstore has the request, with its headers


class FilesBelow(Files):
    """Files of a directory inside another one."""

    def __init__(self, files: Files, directory: str) -> None:
        super().__init__(files.name(directory))
        self._files, self._directory = files, directory
        self.in_flight, self.scheme = files.in_flight, files.scheme

    def read(self, name: str, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file."""
        return self._files.read(f"{self._directory}/{name}", offset, num_bytes)

    def read_small(self, name: str, max_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._files.read_small(f"{self._directory}/{name}", max_bytes)


def _missing(files: Files, name: str) -> NotFoundError:
    return NotFoundError(f"{files.name(name)}: there is no such file", path=files.name(name))


def _reason(error: Exception) -> str:
    """Return what went wrong in a few words, without addresses, which may hold secrets."""
    line = str(error).strip().partition("\n")[0]
    status = re.search(r"status code: (\d{3}[^:<]*)", line)
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    if status is not None:
        return status[1].strip() + (f" ({code[1]})" if code else "")
    line = line.rpartition(" - ")[2]
    return re.sub(r"\w+://\S+", "...", line)[:200] or type(error).__name__


def refuse_fork(label: str) -> None:
    """Refuse to use obstore in a process that was forked after its parent had used it."""
    if not _used_by:
        _used_by.append(os.getpid())
    elif _used_by[0] != os.getpid():
        raise UsageError(
            f"{label}: this process was forked after its parent had read from an object store, and "
            "would wait for ever; start processes by 'spawn', or open the store before they are "
            "forked",
            path=label,
        )


def files_at(place: Any) -> Files:
    """Return the files of a directory on a path, behind a URL, or in a store of obstore."""
    if not is_elsewhere(place):
        return PathFiles(Path(os.path.abspath(place)))  # noqa: PTH100 - resolve() would hide links
    if isinstance(place, str):
        return _files_of_url(place)
    if isinstance(place, os.PathLike):
        raise UsageError(
            f"{_shown(os.fspath(place))}: a URL has two slashes, of which a path keeps one; give "
            "it as a text"
        )
    if not (hasattr(place, "get") and hasattr(place, "put") and hasattr(place, "list")):
        raise UsageError(
            f"{type(place).__name__}: neither a path, nor a URL, nor a store of obstore; {_WRITE}"
        )
    scheme = _SCHEME_OF.get(type(place).__name__, "")
    return ObjectFiles(place, _label_of(place, scheme), scheme)


def _label_of(store: Any, scheme: str) -> str:
    """Return a store's place without anything that may be secret."""
    if scheme == "https":
        parts = urlsplit(store.url)
        return f"{parts.scheme}://{parts.hostname}{parts.path}".rstrip("/")
    config, prefix = getattr(store, "config", None) or {}, getattr(store, "prefix", None)
    if type(store).__name__ == "LocalStore":
        return str(prefix or "/")
    bucket = config.get("bucket") or config.get("container_name")
    where = "/".join(str(part).strip("/") for part in (bucket, prefix) if part)
    return f"{scheme}://{where}" if scheme else where or type(store).__name__


def _shown(place: str) -> str:
    """Return a URL that is refused, for messages: without user, password and query."""
    match = re.fullmatch(r"([^:/]*:/+|)([^?#]*)(.*)", place, re.DOTALL)
    assert match is not None  # noqa: S101 - it matches any text
    start, plain, more = match.groups()
    if "@" in more:  # a password may have any character
        plain = "..."
    elif start and "@" in plain:
        plain = f"...@{plain.rpartition('@')[2]}"
    return f"{start}{plain}"


def checked_url(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket or host, and path of a URL; refuse one with anything else."""
    shown = _shown(url)
    match = _SCHEME.match(url)
    scheme = "" if match is None else match["scheme"]
    if scheme not in _ENDPOINTS:
        advice = f"pass the path itself, without {scheme}://" if scheme == "file" else _WRITE
        if scheme == "http":
            advice = (
                "http:// is not encrypted; write https://, or, if you trust the network, "
                f"{_OWN_STORE}: HTTPStore.from_url(URL, client_options={{'allow_http': True}})"
            )
        raise UsageError(f"{shown}: not a kind of URL that can be read; {advice}")
    rest = url[match.end() :] if match is not None else ""
    if not rest.startswith("/"):
        raise UsageError(f"{shown}: one slash after {scheme}:; {_WRITE}")
    host, _, path = rest[1:].partition("/")
    pattern = r"[A-Za-z0-9.-]+(:\d+)?|\[[0-9a-fA-F:]+\](:\d+)?" if scheme == "https" else _BUCKET
    is_name = re.fullmatch(pattern, host) is not None
    # A password may have a slash in it.
    if "@" in host or (host and not is_name and "@" in path):
        raise UsageError(
            f"{shown}: has a user or a password, which would show in messages; leave it out, and "
            "give credentials in the environment"
        )
    if "?" in url or "#" in url:
        raise UsageError(
            f"{shown}: has more after '?' or '#', such as a signature, which cannot be used for "
            "several files; leave it out, and give credentials in the environment"
        )
    path = path.rstrip("/")
    if not is_name:
        noun = {"https": "host", "az": "container"}.get(scheme, "bucket")
        what = f"{host!r} is not the name of a {noun}" if host else f"names no {noun}"
        raise UsageError(f"{shown}: {what}; {_WRITE}")
    if any(part in ("", ".", "..") for part in path.split("/")[: None if path else 0]):
        raise UsageError(f"{shown}: has an empty part, '.' or '..' in its path; {_WRITE}")
    return scheme, host, path


def _files_of_url(url: str) -> ObjectFiles:
    scheme, host, path = checked_url(url)
    label = f"{scheme}://{host}" + (f"/{path}" if path else "")
    refuse_fork(label)
    try:
        from obstore import store as stores  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            f"{label}: reading URLs needs obstore, which is not installed ({error}); pip install "
            "'gnnstore[remote]'"
        ) from error
    plain = [os.environ.get(name, "").lower().startswith("http://") for name in _ENDPOINTS[scheme]]
    is_emulated = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
    options: Any = {
        "client_options": {
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=ANSWER_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            # Else settings of the environment are not used.
            "allow_http": any(plain) or (scheme == "az" and is_emulated),
        },
        "retry_config": {
            "max_retries": MAX_RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    }
    store: Any
    try:
        if scheme == "https":
            store = stores.HTTPStore.from_url(f"https://{host}/{path}", **options)
        else:
            kinds = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
            store = kinds[scheme](host, prefix=path or None, **options)
    except Exception as error:
        advice = _CREDENTIALS.get(scheme, _OWN_STORE)
        raise UsageError(f"{label}: {_reason(error)}; {advice}") from None
    return ObjectFiles(store, label, scheme)
