# Included by run.sh: trainings in 16 bits. The same bits in every sink mode, thread count, after a resume and without copies of parameters; near the interpreter of the same
# precision and near f32; and loss scaling: steps whose gradients overflow change nothing, are named, and halve the scale.
for p in bf16 f16 mixed; do
	for m in convnet sequence; do
		net=tests/train/$m.net
		"$mantou" build "$net" --precision $p -o "$dir/$m.$p" >"$dir/out" 2>&1 || { bad "build $m --precision $p: $(head -n 2 "$dir/out" | tr '\n' ' ')"; continue; }
		"$mantou" build "$net" --precision $p --target ref -o "$dir/$m.$p.ref" >"$dir/out" 2>&1 || bad "build $m --precision $p --target ref: $(head -n 2 "$dir/out" | tr '\n' ' ')"
		train "$m.$p.a" "$m.$p" --threads 2 || continue
		for sink in off 3; do
			train "$m.$p.sink" "$m.$p" --sink $sink --threads 2 && same "$m $p --sink $sink" "$m.$p.a" "$m.$p.sink"
		done
		train "$m.$p.t3" "$m.$p" --threads 3 && same "$m $p --threads 3" "$m.$p.a" "$m.$p.t3"
		train "$m.$p.half" "$m.$p" --stop 4 && train "$m.$p.resumed" "$m.$p" --resume "$dir/$m.$p.half.st" && same "$m $p stopped after 4 and resumed" "$m.$p.a" "$m.$p.resumed"
		train "$m.$p.ref" "$m.$p.ref" && near "$m $p against the interpreter" "$m.$p.a" "$m.$p.ref" 2e-2
		near "$m $p against f32" "$m.$p.a" "$m.a" 3e-2
		[ $p = mixed ] && continue
		"$mantou" build "$net" --precision $p --disable copies -o "$dir/$m.$p.cast" >"$dir/out" 2>&1 || bad "build $m --precision $p --disable copies: $(head -n 2 "$dir/out" | tr '\n' ' ')"
		train "$m.$p.cast" "$m.$p.cast" --threads 2 && same "$m $p --disable copies" "$m.$p.a" "$m.$p.cast"
	done
done

# parameters NAME A B: the checkpoints' states but those of the loss scale
states_same() {
	if python3 - "$dir/$2.st" "$dir/$3.st" <<'END'
import json, struct, sys
def states(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8:8 + n])
    return {k: b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in h.items() if k != "__metadata__" and not k.startswith("loss_scale")}
a, b = map(states, sys.argv[1:3])
sys.exit(a != b or not any("dense0.weight" in k for k in a))
END
	then good; else bad "$1"; fi
}
for form in "one" "many -D batches=2 -D clip=1.0"; do
	set -- $form
	ov=overflow.$1
	shift
	"$mantou" build tests/train/f16/overflow.net --precision f16 -o "$dir/$ov" "$@" >"$dir/out" 2>&1 || { bad "build $ov: $(head -n 2 "$dir/out" | tr '\n' ' ')"; continue; }
	"$dir/$ov" train --steps 0 --save "$dir/$ov.start.st" >"$dir/out" 2>&1
	"$dir/$ov" train --steps 10 --stop 1 --save "$dir/$ov.first.st" --log "$dir/$ov.first.log" >"$dir/out" 2>&1
	if grep -q '^step 0: the gradient of [a-z0-9.]* is not finite at loss scale 32' "$dir/out"; then good; else bad "$ov: no message: $(cat "$dir/out")"; fi
	states_same "$ov: a step left out changes no parameter" "$ov.start" "$ov.first"
	train "$ov.a" "$ov" --threads 2 || continue
	"$mantou" build tests/train/f16/overflow.net --precision f16 --disable copies -o "$dir/$ov.cast" "$@" >"$dir/out" 2>&1 || bad "build $ov --disable copies: $(head -n 2 "$dir/out" | tr '\n' ' ')"
	train "$ov.cast" "$ov.cast" && same "$ov --disable copies" "$ov.a" "$ov.cast"
	train "$ov.off" "$ov" --sink off --threads 1 && same "$ov --sink off" "$ov.a" "$ov.off"
	train "$ov.resumed" "$ov" --resume "$dir/$ov.first.st" && same "$ov resumed" "$ov.a" "$ov.resumed"
	if python3 - "$dir/$ov.a.log" <<'END'
import json, sys
r = [o for o in map(json.loads, open(sys.argv[1])) if "step" in o]
s = [o["scale"] for o in r]
sys.exit(not (s[0] == 32 and s[1] == 16 and s[-1] < 16 and all(b in (a, a / 2) for a, b in zip(s, s[1:])) and r[-1]["loss"] < r[0]["loss"]))
END
	then good; else bad "$ov: $(tail -n 3 "$dir/$ov.a.log" | tr '\n' ' ')"; fi
done
