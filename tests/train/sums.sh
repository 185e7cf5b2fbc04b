# The loss of the first step with fusion and without: a sum over a tensor that no operand is broadcast along runs through
# the same loop nest either way, so its bits are the same; a bias by channels keeps axes apart that the sum alone would
# merge, and lanes add up other elements, in as many steps: a few units in the last place.
# In: what run.sh has.
sums() { # sums NAME LOSS UNITS BODY: the losses of the first step differ by UNITS of 2^-24 at most
	cat >"$dir/sums.net" <<END
model sums(x: f32[N, 784]) {
    h = x |> dense(64) |> relu |> $4
    loss $2
    output h
}
data { reader = synthetic(examples = 100) }
train { batch = 10  epochs = 1  optimizer = sgd(rate = 0.01)  seed = 1 }
END
	"$mantou" build "$dir/sums.net" -o "$dir/sums.fused" >"$dir/out" 2>&1 &&
		"$mantou" build "$dir/sums.net" --disable fuse -o "$dir/sums.apart" >"$dir/out" 2>&1 ||
		{ bad "build of sums, $1: $(head -n 1 "$dir/out")"; return; }
	train sums.a sums.fused && train sums.b sums.apart || return
	if python3 - "$dir/sums.a.log" "$dir/sums.b.log" "$3" >"$dir/out" 2>&1 <<'END'
import json, sys
a, b = (json.loads(open(f).readline())["loss"] for f in sys.argv[1:3])
if not abs(a - b) <= float(sys.argv[3]) * 2 ** -24 * abs(b):
    sys.exit(f"{a} fused, {b} apart: {(a - b) / abs(b) * 2 ** 24:.1f} units")
END
	then good; else bad "sums, $1: $(tail -n 1 "$dir/out")"; fi
}
sums "squares of 7,840 numbers" "mse(h, x)" 0 "dense(784)"
sums "a function of each" "sum(abs(sigmoid(h))) / 100" 0 "dense(784)"
sums "two lanes of a vector" "mean(softplus(sigmoid(h * 30)))" 2 \
	"dense(1216) |> reshape([N, 32, 19, 2]) |> resize([11, 2], mode = \"bilinear\")"
sums "behind a bias by channels" "mean(square(h))" 4 "reshape([N, 1, 8, 8]) |> conv2d(16, 3, pad = 1)"

# Half of what a rectifier gives is zero: 8,192 equal differences from the first element, added one after the other,
# round the same way each time. Statistics of two channels must not show it (2e-5 without what carries the rounding).
cat >"$dir/stats.net" <<'NET'
model stats(image: f32[N, 3, 64, 64]) {
    x = image |> conv2d(2, 7, stride = 2, pad = 3) |> batch_norm |> relu |> batch_norm
    loss mean(exp(x * 0.3))
    output x
}
data { reader = synthetic(examples = 8) }
train { batch = 8  epochs = 1  optimizer = sgd(rate = 0.01)  seed = 1 }
NET
if "$mantou" build "$dir/stats.net" -o "$dir/stats.cpu" >"$dir/out" 2>&1 &&
	"$mantou" build "$dir/stats.net" --target ref -o "$dir/stats.ref" >"$dir/out" 2>&1; then
	if train stats.a stats.cpu && train stats.b stats.ref; then
		if python3 - "$dir/stats.a.log" "$dir/stats.b.log" >"$dir/out" 2>&1 <<'END2'
import json, sys
a, b = (json.loads(open(f).readline())["loss"] for f in sys.argv[1:3])
if not abs(a - b) <= 3e-6 * abs(b):
    sys.exit(f"{a}, the interpreter's {b}")
END2
		then good; else bad "statistics behind a rectifier: $(tail -n 1 "$dir/out")"; fi
	fi
else bad "build of stats: $(head -n 1 "$dir/out")"; fi
