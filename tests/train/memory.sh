# Included by run.sh: a budget of memory. The least that the error names works, what is built keeps it, and recomputed activations give the same bits:
# dropout, crops and running statistics among them.
budget() { # budget MODEL SIZE: builds, checks that the arena keeps the budget, trains, compares with MODEL.a
	model=$1 size=$2
	"$mantou" build tests/train/$model.net --memory "$size" -o "$dir/$model.memory" >"$dir/out" 2>&1 || { bad "build $model --memory $size: $(head -n 1 "$dir/out")"; return 1; }
	arena=$("$dir/$model.memory" info --json | sed 's/.*"arena_bytes": \([0-9]*\).*/\1/')
	if [ "$arena" -le "$size" ]; then good; else bad "$model --memory $size: the arena has $arena bytes"; fi
	train "$model.memory" "$model.memory" --threads 2 && same "$model --memory $size" "$model.a" "$model.memory"
}
for m in convnet sequence; do
	least=$("$mantou" check tests/train/$m.net --memory 1000 2>&1 | sed -n 's/.*--memory \([0-9]*\);.*/\1/p')
	plain=$("$mantou" info tests/train/$m.net --json | sed -n 's/.*"arena_bytes": \([0-9]*\).*/\1/p')
	if [ "${least:-0}" -gt 0 ] && [ "$least" -lt "$plain" ]; then good; else bad "$m: least budget '$least', without recomputing $plain"; continue; fi
	budget $m "$least"
	budget $m $(((least + plain) / 2))
	budget $m "$plain"
	if "$mantou" check tests/train/$m.net --memory $((least - 1)) >"$dir/out" 2>&1; then bad "$m: one byte less than the least is taken"; else good; fi
done
