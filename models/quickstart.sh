#!/bin/sh
# From nothing to a trained network in minutes: installs what is missing, builds mantou in build/, compiles lenet.net and trains it on the digits
# beside this file.
set -eu
cd "$(dirname "$0")/.."
sh tests/install.sh
if [ ! -f build/build.ninja ]; then
	mkdir -p build
	meson setup build --buildtype=release >build/setup.log 2>&1 || { tail -n 20 build/setup.log >&2; exit 1; }
fi
echo "building mantou in build/"
ninja -C build >build/ninja.log 2>&1 || { tail -n 30 build/ninja.log >&2; exit 1; }
echo "compiling models/lenet.net to build/lenet"
build/mantou build models/lenet.net -o build/lenet
echo "training it on 8,000 digits, testing on 2,000 others"
build/lenet train --data models/digits --save build/lenet.safetensors
cat <<'END'

What next:
  build/lenet eval --data models/digits --weights build/lenet.safetensors     the trained network once more on the held-out digits
  build/lenet bench --synthetic                                               how fast it is on this machine
  build/mantou check models/lenet.net                                         its layers: shapes, parameters, FLOPs
  build/mantou explain models/lenet.net                                       what was fused, and why not
  build/mantou dump models/lenet.net                                          the program as the compiler sees it
  build/mantou tune models/lenet.net --budget 1m                              kernels measured here; build reads what won
  build/mantou run models/mlp.net -- train --data models/digits               another model; models/README.md lists them all
END
