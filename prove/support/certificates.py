#!/usr/bin/env python3
"""Certificates of proofs that are not the installation's own, made by openssl.

    certificates.py authority DIRECTORY STEM
    certificates.py issue DIRECTORY AUTHORITY STEM HOST...
    certificates.py shown ADDRESS...

`authority` makes STEM.pem and STEM.key in DIRECTORY. `issue` makes STEM.pem, a chain, and STEM.key there, signed by the authority AUTHORITY of
the same directory; files of the same name are replaced. `shown` prints the SHA-256 of the certificate that each ADDRESS shows to a new
connection.
"""

import hashlib
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys

CONNECT_TIMEOUT_SECONDS = 10


def openssl(work, *words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=work)


def make_authority(work, name):
    openssl(work, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def issue(work, authority, key, stem, names, start="20200101000000Z", end="20491231000000Z"):
    """A certificate with its chain, valid between two times. `openssl ca` is the command of OpenSSL 3.0 that takes both."""
    place = work / f"{stem}-ca"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "index").touch()
    (place / "index.attr").write_text("unique_subject = no\n")
    (place / "serial").write_text(os.urandom(15).hex() + "42\n")
    alternative = ",".join(f"IP:{name}" if name[0].isdigit() else f"DNS:{name}" for name in names)
    (place / "config").write_text(
        f"[ca]\ndefault_ca = own\n[own]\ndatabase = {place}/index\nserial = {place}/serial\nnew_certs_dir = {place}\n"
        "default_md = sha256\npolicy = any\nx509_extensions = leaf\n[any]\ncommonName = supplied\n"
        f"[leaf]\nsubjectAltName = {alternative}\nextendedKeyUsage = serverAuth,clientAuth\nbasicConstraints = critical,CA:FALSE\n"
    )
    openssl(work, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={names[0]}",
            "-keyout", place / "key", "-out", place / "request")
    openssl(work, "ca", "-batch", "-notext", "-config", place / "config", "-cert", authority, "-keyfile", key, "-startdate", start,
            "-enddate", end, "-in", place / "request", "-out", place / "leaf")
    # The key first: a server that loads in between finds that they do not fit, and looks again.
    for source, target in (((place / "key").read_text(), f"{stem}.key"),
                           ((place / "leaf").read_text() + pathlib.Path(authority).read_text(), f"{stem}.pem")):
        draft = work / f"{target}.new"
        draft.write_text(source)
        draft.chmod(0o600)
        draft.rename(work / target)
    return work / f"{stem}.pem", work / f"{stem}.key"


def shown_certificate(address):
    """The SHA-256 of the certificate that an address shows. Whether it is trusted is not looked at."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return hashlib.sha256(connection.getpeercert(binary_form=True)).hexdigest()


def main():
    match sys.argv[1:]:
        case ["authority", work, stem]:
            make_authority(pathlib.Path(work), stem)
        case ["issue", work, authority, stem, *names] if names:
            work = pathlib.Path(work)
            issue(work, work / f"{authority}.pem", work / f"{authority}.key", stem, names)
        case ["shown", *addresses] if addresses:
            for address in addresses:
                print(shown_certificate(address))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
