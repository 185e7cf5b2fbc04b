/* fuzz_net.c: any bytes as a .net file: the compiler ends, and gives either a module that verifies or an error.
 *
 * The seeds hold every statement and most of the grammar, so that mutations and splices of them reach far. */
#include <stdlib.h>
#include <string.h>
#include "../../frontend/sema.h"
#include "fuzz.h"

static const char *const seeds[] = {
        "model m(x: f32[N, 3]) {\n    loss mean(x)\n}\ntrain { batch = 2 }\n",
        "# blocks, pipes, labels\nconst classes = 10\nblock conv_bn(x, channels, kernel, stride = 1) {\n"
        "    return x |> conv2d(channels, kernel, stride = stride, pad = kernel / 2, bias = false) |> batch_norm\n}\n"
        "block bottleneck(x, width, stride = 1) {\n    y = x |> conv_bn(width, 1) |> relu |> conv_bn(4 * width, 3, "
        "stride)\n"
        "    if stride != 1 or x.shape[1] != 4 * width { x = x |> conv_bn(4 * width, 1, stride) as shortcut }\n    "
        "return relu(y + x)\n}\n"
        "model r(image: u8[N, 3, 8, 8], label: i32[N]) {\n    x = image |> cast(f32) |> normalize(mean = [125.3, "
        "123.0, 113.9], std = [63.0, 62.1, 66.7])\n"
        "    if training { x = x |> random_crop(8, pad = 1) |> random_flip }\n    repeat 2 { x = bottleneck(x, 4) }\n"
        "    logits = x |> mean(axes = [2, 3]) |> dense(classes) as head\n    loss cross_entropy(logits, label)\n"
        "    metric accuracy = accuracy(logits, label)\n    output logits\n    require peak_memory <= 2GiB\n}\n"
        "data { reader = synthetic(64)  shuffle = false }\n"
        "train { batch = 4  optimizer = momentum(rate = poly(from = 0.01, peak = 0.1, to = 1e-5, warmup_epochs = 5), "
        "momentum = 0.9)\n"
        "  precision = mixed  sink = epoch  seed = 1  clip_norm = 0.5  freeze = [\"head\"] }\n",
        "const width = 8\nconst rows = N * 2\nblock heads(x) { return x |> reshape([x.shape[0], x.shape[1], 2, width / "
        "2]) |> transpose([0, 2, 1, 3]) }\n"
        "block two(x, n = range(2)) { a, b = split(x, [4, 4], 2)  return a, b }\n"
        "model g(ids: i32[N, 6], next: i32[N, 6]) {\n    table = param([16, width], init = normal(0.02)) as table\n"
        "    x = take(table, ids) + 1\n    q = x |> dense(width) |> heads\n    y = attention(q, q, q, causal = true) "
        "|> transpose([0, 2, 1, 3])\n"
        "    y = reshape(y, [N, 6, width]) |> layer_norm |> dropout(0.1) |> lstm(width)\n    a, b = two(y)\n"
        "    for w, s in [[1, 2], [3, 4]] { y = y * w - s / 2 % 3 }\n    for i in range(2) { y = -y + i }\n"
        "    if not training and true { y = y } else if 1 < 2 { y = y |> relu } else { y = none }\n"
        "    z = where(y > 0.5, y, concat([a, b], 2))\n    w = [1, 2] + [3]\n    logits = matmul(z, transpose(table, "
        "[1, 0]))\n"
        "    loss cross_entropy(logits, next)\n    loss mean(square(y)) * 1e-3\n    output y = softmax(logits)\n}\n"
        "train { batch = 2  optimizer = adamw(rate = cosine(peak = 0.1, warmup_steps = 4), beta2 = 0.95)  accumulate = "
        "2  epochs = 3 }\n",
};
enum { NSEEDS = sizeof seeds / sizeof *seeds };

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static bool ready;
	Arena *a = arena_new();
	FILE *out = fopen("/dev/null", "w");
	Diags d;
	Module *m;
	Buf errors = {0};

	if (!ready)
		ir_init();
	ready = true;
	if (!out)
		abort();
	diags_init(&d, a, out);
	m = frontend_compile_text(a, &d, "fuzz.net", (const char *)data, n, NULL, 0, 0, 0, NULL);
	if ((m != NULL) != (d.nerror == 0))
		abort();
	if (m && !module_verify(m, &errors)) {
		fputs(errors.at ? errors.at : "module_verify says no more\n", stderr);
		abort();
	}
	buf_free(&errors);
	fclose(out);
	arena_free(a);
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	size_t n = k < NSEEDS ? strlen(seeds[k]) : 0;

	if (n > room)
		return 0;
	if (n)
		memcpy(out, seeds[k], n);
	return n;
}
