"""At the party: its upload as shares for the nodes."""

from pathlib import Path
from threading import Event

import numpy as np

from xvfl.certs import PeerVerifier
from xvfl.errors import RunError
from xvfl.federation.upload.manifest import UploadManifest
from xvfl.service.secret_shares.nodes import Agreement, read_agreement
from xvfl.service.secret_shares.shares import (
    PRIVATE,
    PUBLIC,
    UPLOAD,
    ShareFolder,
    first_weights,
    send_shares,
)
from xvfl.service.uploads.changed_rows import is_sent
from xvfl.service.uploads.file_exchange import chunks, prepare_upload
from xvfl.service.uploads.upload_party import UploadPartyService


def share_upload(
    service: UploadPartyService, held_out: Path, out: Path, stop: Event
) -> tuple[Agreement, list[Path]] | None:
    """Train the encoder if it is not trained yet; write a file of shares for each node.

    Parameters
    ----------
    service
        The party; its ids must be matched.
    held_out
        The file of `xvfl upload held-out`.
    out
        The folder of the files.
    stop
        Stops the training; then nothing is written.
    """
    config = service.inputs.config
    if config.secret is None:
        raise RunError('expected secret = "spu" in the configuration; see `xvfl secret --help`')
    agreement = read_agreement(
        config.secret_options, PeerVerifier(config.tls.ca_certificate, config.revocation_list)
    )
    found = prepare_upload(service, held_out, stop)
    if found is None:
        return None
    manifest, _ = found
    if manifest.part:
        raise RunError(
            f"version {manifest.name} has only new and changed rows; shares need all: allow a new "
            "version with `xvfl upload new-version --keep-encoder`"
        )
    with ShareFolder(config.state_dir) as folder:
        _save(service, manifest, folder, agreement.options.hidden)
        content = {"what": UPLOAD, "session": manifest.session, "version": manifest.name}
        name = service.inputs.name
        files = send_shares(agreement, config.tls, name, folder.path, content, out)
    service.record.set_stored(manifest.digest)
    return agreement, files


def _save(
    service: UploadPartyService, manifest: UploadManifest, folder: ShareFolder, hidden: int
) -> None:
    shape = manifest.rows, 1 + manifest.masked_copies, manifest.width
    views, start = folder.create("views", shape), 0
    observed = np.zeros(manifest.rows, np.uint8)
    for origin, values, status in chunks(service, manifest):
        rows = start + np.flatnonzero(is_sent(origin).numpy())
        views[rows] = values.numpy()
        # Withdrawn rows stay zeros, and count as not observed.
        observed[rows] = status.numpy() > 0
        start += len(origin)
    folder.save(PUBLIC, "observed", observed)
    folder.save(PRIVATE, "w", first_weights((manifest.width, hidden), manifest.width))
