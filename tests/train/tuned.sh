# Included by run.sh: kernels with parameters of a tuning file, random ones: the same losses within bounds, and the same bits for any number of threads.
cat >"$dir/tuned.net" <<'END2'
# Filters for the direct way and for Winograd, with a stride and without, 1x1, epilogues and statistics; matrix products with either operand turned.
model tuned(image: f32[N, 16, 10, 10], label: i32[N]) {
    x = image |> conv2d(32, 3, pad = 1, bias = false) |> batch_norm |> relu
    x = relu(x + (x |> conv2d(32, 1) |> silu |> conv2d(32, 3, pad = 1)))
    x = x |> conv2d(40, 3, stride = 2) |> relu
    logits = x |> flatten |> dense(70) |> tanh |> dense(5) as head
    loss   cross_entropy(logits, label)
    output logits
}
data { reader = synthetic(examples = 24) }
train { batch = 6  epochs = 3  optimizer = momentum(rate = 0.01, momentum = 0.9)  seed = 4 }
END2
tuned() { # tuned MODEL.net BOUND BUILD OPTIONS...
	net=$1 bound=$2 m=$(basename "$1" .net)
	shift 2
	"$mantou" build "$net" --tuning /dev/null -o "$dir/untuned" "$@" >"$dir/out" 2>&1 || { bad "build $m $*: $(head -n 1 "$dir/out")"; return 1; }
	train untuned untuned || return 1
	MANTOU=$mantou python3 tests/train/tuned.py "$net" 3 7 "$dir" "$@" >"$dir/out" 2>&1 || { bad "tuned $m $*: $(tail -n 1 "$dir/out")"; return 1; }
	for i in 0 1 2; do
		train "tuned$i" "tuned$i" --threads 2 && near "$m $* with random parameters, file $i" "tuned$i" untuned "$bound" &&
			train "tuned$i.one" "tuned$i" --threads 1 && same "$m $* with random parameters, file $i, one thread" "tuned$i" "tuned$i.one"
	done
}
tuned "$dir/tuned.net" 1e-4
tuned "$dir/tuned.net" 2e-2 --precision bf16
tuned tests/train/convnet.net 1e-4
tuned tests/train/sequence.net 1e-4 --arch x86-64-v3
