#!/bin/sh
# Installs from Debian what building and testing need; does nothing where all is there. As root, or through sudo.
#   sh tests/install.sh              compiler, meson, flex, bison, LLVM 19, cmocka, zlib, libjpeg-turbo, libpng
#   sh tests/install.sh PACKAGE...   these instead
set -eu
[ $# -gt 0 ] || set -- gcc libc6-dev meson ninja-build pkg-config flex bison llvm-19-dev libcmocka-dev zlib1g-dev libjpeg62-turbo-dev libpng-dev
missing=
for package; do
	dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
root=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "install.sh: needs root or sudo for:$missing" >&2; exit 1; }
	root=sudo
fi
echo "installing:$missing" >&2
log=$(mktemp)
# A list of packages may be stale or absent: it is fetched only if what is there does not do.
$root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >"$log" 2>&1 ||
	{ $root apt-get update -qq >"$log" 2>&1 && $root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >>"$log" 2>&1; } ||
	{ tail -n 15 "$log" >&2; echo "install.sh: could not install:$missing" >&2; rm -f "$log"; exit 1; }
rm -f "$log"
