#!/bin/sh
# Makes a base image for BASE out of Debian packages, where no image registry can be reached: as root,
#   docker/debian_base.sh headrace-base [SUITE [MIRROR]]
# It needs debootstrap and podman or docker. Debian 12 (bookworm) has Python 3.11, Debian 13 (trixie) Python 3.13.
set -eu
name=$1 suite=${2:-bookworm} mirror=${3:-}
builder=${BUILDER:-$(command -v podman || command -v docker)}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python-is-python3,python3-pip,python3-venv,python3-dev \
    "$suite" "$root" $mirror
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar --create --directory "$root" --exclude './proc/*' --exclude './sys/*' --exclude './dev/*' . \
    | "$builder" import - "$name"
