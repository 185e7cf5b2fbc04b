#!/bin/sh
# What `meson install` puts in place works without the source tree: installed under DESTDIR and moved elsewhere, it
# builds and trains a model of its own; pkg-config, manual, completion of three shells. With --long also a Debian
# package by dpkg-buildpackage, unpacked where it lies, and installed in a chroot where that is allowed.
set -u
cd "$(dirname "$0")/../.."
source=$PWD build=${BUILD:-$PWD/build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
ok() { # ok NAME COMMAND...
	name=$1
	shift
	if "$@" >"$dir/log" 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL $name: $(tail -c 400 "$dir/log")"; fi
}
skip() { skipped=$((skipped + 1)); echo "skip $1"; }
has() { grep -qE -- "$2" "$1"; }

# program PREFIX: builds and trains with what is installed there, in an empty folder, told nothing of the source tree.
program() (
	mkdir -p "$dir/work" && cd "$dir/work" && rm -rf ./* &&
		env -i PATH="$1/bin:/usr/bin:/bin" HOME="$dir/work" mantou build "$1/share/mantou/models/lenet.net" -o lenet &&
		env -i PATH=/usr/bin:/bin ./lenet train --data "$1/share/mantou/models/digits" --steps 3 --no-eval --save l.safetensors &&
		env -i PATH=/usr/bin:/bin ./lenet eval --data "$1/share/mantou/models/digits" --weights l.safetensors --json | grep -q accuracy
)

# ---- meson install
ok "what is installed builds" ninja -C "$build" installed
ok "meson install" env DESTDIR="$dir/staged" meson install -C "$build" --no-rebuild
prefix=$(meson introspect "$build" --buildoptions | python3 -c 'import json, sys; print({o["name"]: o["value"] for o in json.load(sys.stdin)}["prefix"])')
mv "$dir/staged$prefix" "$dir/moved"
ok "nothing lies outside the prefix" sh -c '[ -z "$(find "$1" -type f)" ]' - "$dir/staged"
ok "the source tree's path is in no text of it" sh -c '! grep -rlIF "$1" "$2"' - "$source" "$dir/moved"
ok "moved elsewhere it builds and trains" program "$dir/moved"
pc=$(find "$dir/moved" -name mantou.pc)
ok "pkg-config" sh -c '[ "$(pkg-config --define-variable=prefix="$2" --variable=models "$1")" = "$2/share/mantou/models" ] && pkg-config --cflags --libs --define-variable=prefix="$2" "$1"' - "$pc" "$dir/moved"
cat >"$dir/use.c" <<'END'
#include <rt.h>
#include <stddef.h>
int main(int argc, char **argv) { const RtCodeObject *const none = NULL; return rt_main(argc, argv, &none, 0) == 1 ? 0 : 1; }
END
ok "a C program with the headers and the runtime" sh -c 'gcc -o "$3/use" "$3/use.c" $(pkg-config --cflags --libs --define-variable=prefix="$2" "$1") && "$3/use" info' - "$pc" "$dir/moved" "$dir"
man=$dir/moved/share/man/man1
for c in build run check dump info opt explain tune scale ops; do
	ok "the page of $c" has "$man/mantou-$c.1" "^\\.SH EXAMPLE"
	"$build/mantou" $c --help | sed -n 's/^  \(--*[a-zA-Z][a-z-]*\).*/\1/p' | while read -r option; do
		sed 's/\\-/-/g' "$man/mantou-$c.1" | grep -qF -- "fB$option\\fR" || echo "$option"
	done >"$dir/lacks"
	ok "all options of $c are in it" test ! -s "$dir/lacks"
done
ok "the page of executables" has "$man/mantou-model.1" 'watch'
if command -v mandoc >/dev/null; then
	for page in "$man"/*.1; do ok "mandoc on $(basename "$page")" sh -c 'test -z "$(mandoc -Tlint -Werror "$1")"' - "$page"; done
elif command -v groff >/dev/null; then
	for page in "$man"/*.1; do ok "groff on $(basename "$page")" sh -c 'test -z "$(groff -ww -man -Tascii "$1" 2>&1 >/dev/null)"' - "$page"; done
else
	skip "pages: neither mandoc nor groff"
fi
# ---- completion
complete_bash() { # complete_bash WORD...: what the last word becomes
	bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mantou; echo "${COMPREPLY[@]}"' - "$dir/moved/share/bash-completion/completions/mantou.bash" "$@"
}
completes() { # completes WANTED WORD...
	wanted=$1
	shift
	[ "$(complete_bash "$@")" = "$wanted" ] || { complete_bash "$@"; false; }
}
ok "bash: commands" completes "explain" mantou exp
ok "bash: options" completes "--precision --prepare" mantou tune --pr
ok "bash: an option of this command only" completes "--stage" mantou dump --stag
ok "bash: words of an option" completes "cpu cuda" mantou build --target c
for shell in zsh:_mantou fish:mantou.fish; do
	file=$(find "$dir/moved/share" -name "${shell#*:}")
	ok "${shell%:*}: every command" sh -c 'for c in build run check dump info opt explain tune scale ops; do grep -q -- "$c" "$1" || exit 1; done' - "$file"
	if command -v "${shell%:*}" >/dev/null; then ok "${shell%:*} reads it" "${shell%:*}" -n "$file"; else skip "${shell%:*} is not installed"; fi
done

# ---- a Debian package
if [ -n "${LONG:-}" ]; then
	command -v dpkg-buildpackage >/dev/null || sh tests/install.sh dpkg-dev
	mkdir -p "$dir/deb/mantou" && git ls-files -z | xargs -0 cp --parents -t "$dir/deb/mantou" && cp -r tests/package/debian "$dir/deb/mantou/debian"
	ok "dpkg-buildpackage" sh -c 'cd "$1/deb/mantou" && dpkg-buildpackage -b -us -uc -d' - "$dir"
	deb=$(find "$dir/deb" -maxdepth 1 -name 'mantou_*.deb')
	ok "it depends on LLVM, which it opens when it is needed" sh -c 'dpkg-deb -f "$1" Depends | grep -q libllvm19' - "$deb"
	mkdir "$dir/root"
	ok "unpacked" dpkg-deb -x "$deb" "$dir/root"
	ok "unpacked, it builds and trains" program "$dir/root/usr"
	# A chroot whose /usr is this machine's under a layer of its own, where dpkg installs the package: no path of the source tree is seen there.
	mkdir -p "$dir/jail/usr" "$dir/over" "$dir/scratch"
	over="lowerdir=/usr,upperdir=$dir/over,workdir=$dir/scratch"
	if [ "$(id -u)" = 0 ] && unshare -m mount -t overlay overlay -o "$over" "$dir/jail/usr" 2>/dev/null; then
		cat >"$dir/inside.sh" <<'END'
set -e
root=$1/jail
mkdir -p "$root/tmp" "$root/dev" "$root/proc" "$root/etc" "$root/var/lib" "$root/var/log"
mount -t overlay overlay -o "$2" "$root/usr"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
for link in bin lib lib64 sbin; do ln -s usr/$link "$root/$link"; done
cp /etc/ld.so.cache "$root/etc/" 2>/dev/null || :
cp -r /etc/alternatives /etc/passwd /etc/group "$root/etc/"
cp -r /var/lib/dpkg "$root/var/lib/"
cp "$3" "$root/tmp/mantou.deb"
cat >"$root/tmp/go.sh" <<'GO'
set -e
cd /tmp
dpkg --no-triggers -i mantou.deb
dpkg -V mantou
[ "$(command -v mantou)" = /usr/bin/mantou ]
mantou build /usr/share/mantou/models/lenet.net -o lenet
./lenet train --data /usr/share/mantou/models/digits --steps 3 --no-eval --save l.safetensors
./lenet eval --data /usr/share/mantou/models/digits --weights l.safetensors
dpkg --no-triggers -r mantou
[ ! -e /usr/bin/mantou ]
[ ! -e /usr/share/mantou ]
./lenet eval --synthetic --weights l.safetensors
GO
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp /bin/sh /tmp/go.sh
END
		ok "installed by dpkg in a chroot it builds and trains, and goes again" unshare -m sh "$dir/inside.sh" "$dir" "$over" "$deb"
	else
		skip "a chroot: not root, or no mount namespaces and overlays here"
	fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
