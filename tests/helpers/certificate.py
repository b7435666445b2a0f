"""A certificate of 127.0.0.1 that nobody trusts, and its key. Both are for tests only."""

from pathlib import Path

_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgGHZy8Sph+nf0RLPN
fEUgis/IzcBXeMQ7UKouybWflWyhRANCAARR5cF79KZz+NABWCWvWOsAgMORu/5E
OoNl+YA+tgG3K7ZZdfrK/LVdDdzvL5riUTSlv8EFUop51QOK7VzRttK/
-----END PRIVATE KEY-----
"""
_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkzCCATmgAwIBAgIBATAKBggqhkjOPQQDAjAXMRUwEwYDVQQDDAxtbHhiZXJ0
IHRlc3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBcxFTATBgNV
BAMMDG1seGJlcnQgdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFHlwXv0
pnP40AFYJa9Y6wCAw5G7/kQ6g2X5gD62Abcrtll1+sr8tV0N3O8vmuJRNKW/wQVS
innVA4rtXNG20r+jdDByMA8GA1UdEQQIMAaHBH8AAAEwDwYDVR0TAQH/BAUwAwEB
/zAdBgNVHQ4EFgQU5xlSk8rLshDE3HAbqGmDJk71us0wHwYDVR0jBBgwFoAU5xlS
k8rLshDE3HAbqGmDJk71us0wDgYDVR0PAQH/BAQDAgKEMAoGCCqGSM49BAMCA0gA
MEUCIQDoRrOxKL12vdX1fQ4NNSthJu6YZNW5TlFUOJ2ZpNNMrgIgRfzTjvXxH5tW
J3pepf/acP7JPQ9M55unyOZcvPVogdM=
-----END CERTIFICATE-----
"""


def save_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_text(_CERTIFICATE, encoding="ascii")
    key.write_text(_KEY, encoding="ascii")
    return certificate, key
