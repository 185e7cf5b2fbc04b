/* image.c: an executable written by hand, to test the runtime without the compiler.
 *
 * Linear regression with noise: pred = x.w + b + 0.01 * uniform(seed, step), loss = mean (pred - y)^2 + 0 * label,
 * momentum 0.9, metric = mean |pred - y|. Inputs x f32[N,4], y f32[N], label i32[N] (checked below 3 in the graph). N
 * is 8. Settings of the descriptor come from the environment (RTI_READER: JSON of the reader, RTI_ACCUMULATE,
 * RTI_EPOCHS, RTI_LIMIT, RTI_SINK, RTI_SLEEP_US: of a step, RTI_PRECISION: f16 adds a loss scale to the states, whose
 * result comes before the metric), so that one program serves all tests. */
#define _GNU_SOURCE
#include "../../runtime/philox.h"
#include "../../runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 8, C = 4 };
/* Places in the arena, in bytes. State first, after the fault record. */
enum {
	FAULT = 0, W = 64, B = 128, WM = 192, BM = 256, AW = 320, AB = 384, SUMS = 448, /* of loss and mae */
	SCALE = 456, GOOD = 460, SKIPPED = 464, /* the loss scale, which nothing changes */
	X = 512, Y = X + 4 * N * C, LABEL = Y + 4 * N, SEED = LABEL + 4 * N, STEP = SEED + 8, RATE = STEP + 8,
	PRED = RATE + 8, LOSS = PRED + 4 * N, MAE = LOSS + 4, NORM = MAE + 4, GW = NORM + 8, GB = GW + 16,
	PACKED = GB + 16, ARENA = PACKED + 64
};

static float *f32(uint8_t *arena, int64_t at) { return (float *)(arena + at); }
static int64_t i64(const uint8_t *arena, int64_t at) { int64_t v; memcpy(&v, arena + at, 8); return v; }
static double f64(const uint8_t *arena, int64_t at) { double v; memcpy(&v, arena + at, 8); return v; }

static void
k_check(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const int32_t *label = (const int32_t *)(arena + LABEL);

	(void)off; (void)t0; (void)t1; (void)scratch;
	for (int64_t i = 0; i < n; i++)
		if (label[i] < 0 || label[i] >= 3) {
			RtFault f = {.set = 1, .op = 0, .element = i, .value = label[i]};

			memcpy(arena + FAULT, &f, sizeof f);
			return;
		}
}

/* Runs once: what evaluation and inference read of the states. */
static void
k_pack(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	(void)off; (void)n; (void)t0; (void)t1; (void)scratch;
	memcpy(arena + PACKED, arena + W, 4 * C);
	memcpy(arena + PACKED + 4 * C, arena + B, 4);
}

/* One example a task. off[0]: 1 in training (noise). */
static void
k_pred(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const float *x = f32(arena, X), *w = f32(arena, off[0] ? W : PACKED), *b = off[0] ? f32(arena, B) : w + C;

	(void)n;
	for (int64_t t = t0; t < t1; t++) {
		float sum = *b;

		((float *)scratch)[0] = sum;
		for (int k = 0; k < C; k++)
			sum += x[t * C + k] * w[k];
		if (off[0])
			sum += (float)(0.01 * philox_uniform((uint64_t)i64(arena, SEED), philox_stream("noise"),
			                                     (uint64_t)i64(arena, STEP), (uint64_t)t));
		f32(arena, PRED)[t] = sum;
	}
}

static void
k_loss(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const float *p = f32(arena, PRED), *y = f32(arena, Y);
	float loss = 0, mae = 0;

	(void)off; (void)t0; (void)t1; (void)scratch;
	for (int64_t i = 0; i < n; i++) {
		loss += (p[i] - y[i]) * (p[i] - y[i]);
		mae += p[i] > y[i] ? p[i] - y[i] : y[i] - p[i];
	}
	*f32(arena, LOSS) = loss / (float)n;
	*f32(arena, MAE) = mae / (float)n;
}

static void
k_grad(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const float *p = f32(arena, PRED), *y = f32(arena, Y), *x = f32(arena, X);
	float *gw = f32(arena, GW), *gb = f32(arena, GB);

	(void)t0; (void)t1; (void)scratch;
	memset(gw, 0, 4 * C);
	*gb = 0;
	for (int64_t i = 0; i < n; i++) {
		float g = 2 * (p[i] - y[i]) / (float)n;

		for (int k = 0; k < C; k++)
			gw[k] += g * x[i * C + k];
		*gb += g;
	}
	if (off[0]) {                            /* accumulate */
		for (int k = 0; k < C; k++)
			f32(arena, AW)[k] += gw[k];
		*f32(arena, AB) += *gb;
		f32(arena, SUMS)[0] += *f32(arena, LOSS);
		f32(arena, SUMS)[1] += *f32(arena, MAE);
	}
}

static void
k_update(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch)
{
	float rate = (float)f64(arena, RATE), *w = f32(arena, W), *b = f32(arena, B), *wm = f32(arena, WM),
	      *bm = f32(arena, BM);
	float *gw = f32(arena, off[0] ? AW : GW), *gb = f32(arena, off[0] ? AB : GB),
	      a = off[0] ? 1 / (float)off[0] : 1, norm = 0;

	(void)n; (void)t0; (void)t1; (void)scratch;
	for (int k = 0; k < C; k++) {
		norm += a * gw[k] * a * gw[k];
		wm[k] = 0.9f * wm[k] + a * gw[k];
		w[k] -= rate * wm[k];
	}
	bm[0] = 0.9f * bm[0] + a * gb[0];
	b[0] -= rate * bm[0];
	*f32(arena, NORM) = sqrtf(norm);
	if (off[0]) {
		memset(gw, 0, 4 * C);
		*gb = 0;
		*f32(arena, LOSS) = a * f32(arena, SUMS)[0];
		*f32(arena, MAE) = a * f32(arena, SUMS)[1];
		memset(f32(arena, SUMS), 0, 8);
	}
	if (getenv("RTI_SLEEP_US"))
		usleep((useconds_t)atoi(getenv("RTI_SLEEP_US")));
}

static RtKernel *const kernels[] = {k_check, k_pred, k_loss, k_grad, k_update, k_pack};

/* ---- entry points, as a compiler would write them */

static const int64_t inputs[] = {X, Y, LABEL}, results[] = {LOSS, MAE, NORM};
static const int32_t types[] = {RT_F32, RT_F32, RT_F32};
static const int64_t yes[] = {1}, no[] = {0};

static int
scaled(void)
{
	return getenv("RTI_PRECISION") && strcmp(getenv("RTI_PRECISION"), "f16") == 0;
}

static int64_t
emit(RtRun *run)
{
	static const int64_t more[] = {LOSS, SCALE, MAE, NORM};
	static const int32_t more_types[] = {RT_F32, RT_F32, RT_F32, RT_F32};

	return scaled() ? rt_emit(run, more, more_types, 4, 0) : rt_emit(run, results, types, 3, 0);
}

static int64_t
poll(RtRun *run)
{
	int64_t tail = __atomic_load_n(&run->ring_tail, __ATOMIC_ACQUIRE),
	        until = __atomic_load_n(&run->stop_at, __ATOMIC_ACQUIRE);

	if (run->step + 1 >= until || run->ring_head - tail > run->ring_mask / 2)
		return rt_poll(run);
	return RT_OK;
}

static void
scalars(RtRun *run)
{
	memcpy(run->arena + SEED, &run->seed, 8);
	memcpy(run->arena + STEP, &run->step, 8);
	memcpy(run->arena + RATE, &run->rate, 8);
}

static int64_t
call_train(RtRun *run, const int64_t *accumulate)
{
	run->prepacked = 0;
	scalars(run);
	rt_parallel(run, k_check, no, 1);
	if (rt_fault(run))
		return RT_FAULT;
	rt_parallel(run, k_pred, yes, run->n);
	rt_parallel(run, k_loss, no, 1);
	rt_parallel(run, k_grad, accumulate, 1);
	return RT_OK;
}

static int64_t
train(RtRun *run)
{
	rt_shuffle(run);
	for (; run->step < run->until; run->step++) {
		rt_batch(run, inputs, 3);
		rt_rate(run);
		if (call_train(run, no) != RT_OK)
			return RT_FAULT;
		rt_parallel(run, k_update, no, 1);
		if (emit(run) != RT_OK)
			return RT_NOT_FINITE;
		if (poll(run) != RT_OK)
			return RT_STOPPED;
	}
	return RT_OK;
}

static int64_t
train_accumulate(RtRun *run)
{
	int64_t times[] = {atoi(getenv("RTI_ACCUMULATE"))};

	rt_shuffle(run);
	for (; run->step < run->until; run->step++) {
		for (run->micro = 0; run->micro < times[0]; run->micro++) {
			rt_batch(run, inputs, 3);
			if (call_train(run, yes) != RT_OK)
				return RT_FAULT;
		}
		rt_rate(run);
		scalars(run);
		rt_parallel(run, k_update, times, 1);
		if (emit(run) != RT_OK)
			return RT_NOT_FINITE;
		if (poll(run) != RT_OK)
			return RT_STOPPED;
	}
	return RT_OK;
}

static void
pack(RtRun *run, int64_t kept)
{
	if (run->prepacked != kept)
		rt_parallel(run, k_pack, no, 1);
	run->prepacked = kept;
}

static int64_t
eval(RtRun *run)
{
	for (; run->step < run->until; run->step++) {
		rt_batch(run, inputs, 3);
		scalars(run);
		pack(run, RT_PREPACKED("eval"));
		rt_parallel(run, k_pred, no, run->n);
		rt_parallel(run, k_loss, no, 1);
		rt_emit(run, results, types, 2, 0);
		if (poll(run) != RT_OK)
			return RT_STOPPED;
	}
	return RT_OK;
}

static int64_t
infer(RtRun *run)
{
	pack(run, RT_PREPACKED("infer"));
	rt_parallel(run, k_pred, no, run->n);
	return RT_OK;
}

/* ---- descriptor */

#define KERNEL(name, fn, off, rows, mul, check) \
	"{\"name\": \"" name "\", \"fn\": " #fn ", \"off\": [" #off \
	"], \"layers\": [\"dense0\"], \"where\": \"line.net:3:5\", \"flops\": 64, \"bytes\": 128, " \
	"\"rows\": " #rows ", \"mul\": " #mul ", \"div\": 8, \"grain\": 1, \"check\": " #check "}"
#define PACK \
	"{\"name\": \"pack\", \"fn\": 5, \"off\": [0], \"layers\": [\"dense0\"], \"where\": \"line.net:3:5\", " \
	"\"flops\": 0, \"bytes\": 40, \"rows\": 1, \"once\": true},"
#define SCALAR(name, kind, at) \
	"{\"name\": \"" name "\", \"kind\": \"" kind \
	"\", \"dtype\": \"f32\", \"shape\": [], \"mark\": [], \"offset\": %d}", \
	        at

static const char *
env(const char *name, const char *fallback)
{
	return getenv(name) ? getenv(name) : fallback;
}

static void
graph(FILE *f, const char *name, const char *kernel_list)
{
	fprintf(f,
	        "\"%s\": {\"inputs\": [%d, %d, %d], \"seed\": %d, \"step\": %d, \"rate\": %d, \"kernels\": [%s], "
	        "\"results\": [",
	        name, X, Y, LABEL, SEED, STEP, RATE, kernel_list);
}

static void
graphs(FILE *f, int accumulate)
{
	graph(f, "train",
	      accumulate > 1
	              ? KERNEL("check", 0, 0, 1, 0, true) "," KERNEL("pred", 1, 1, 1, 8, false) "," KERNEL(
	                        "loss", 2, 0, 1, 0, false) "," KERNEL("grad", 3, 1, 1, 0, false)
	              : KERNEL("check", 0, 0, 1, 0, true) "," KERNEL("pred", 1, 1, 1, 8, false) "," KERNEL(
	                        "loss", 2, 0, 1, 0, false) "," KERNEL("grad", 3, 0, 1, 0,
	                                                              false) "," KERNEL("update", 4, 0, 1, 0, false));
	if (accumulate > 1) {
		fprintf(f, "]}, ");
		char update[512];

		snprintf(update, sizeof update,
		         "{\"name\": \"update\", \"fn\": 4, \"off\": [%d], \"flops\": 10, \"bytes\": 20, \"rows\": 1}",
		         accumulate);
		graph(f, "update", update);
	}
	fprintf(f, SCALAR("loss", "loss", LOSS));
	if (scaled())
		fprintf(f, ", " SCALAR("scale", "scale", SCALE));
	fprintf(f, ", " SCALAR("mae", "metric", MAE));
	fprintf(f, ", " SCALAR("grad_norm", "norm", NORM));
	fprintf(f, "]}, ");
	graph(f, "eval", PACK KERNEL("pred", 1, 0, 1, 8, false) "," KERNEL("loss", 2, 0, 1, 0, false));
	fprintf(f, SCALAR("loss", "loss", LOSS));
	fprintf(f, ", " SCALAR("mae", "metric", MAE));
	fprintf(f, "]}, ");
	graph(f, "infer", PACK KERNEL("pred", 1, 0, 1, 8, false));
	fprintf(f,
	        "{\"name\": \"pred\", \"kind\": \"output\", \"dtype\": \"f32\", \"shape\": [8], \"mark\": [[1, 1]], "
	        "\"offset\": %d}]}",
	        PRED);
}

static void
states(FILE *f, int accumulate)
{
	fprintf(f,
	        "{\"name\": \"dense0.weight\", \"kind\": \"param\", \"dtype\": \"f32\", \"shape\": [1, 4], \"offset\": "
	        "%d, \"init\": \"normal\", \"a\": 0, \"b\": 0.5}, ",
	        W);
	fprintf(f,
	        "{\"name\": \"dense0.bias\", \"kind\": \"param\", \"dtype\": \"f32\", \"shape\": [1], \"offset\": %d, "
	        "\"init\": \"uniform\", \"a\": -0.5, \"b\": 0.5}, ",
	        B);
	fprintf(f,
	        "{\"name\": \"dense0.weight.momentum\", \"kind\": \"slot\", \"dtype\": \"f32\", \"shape\": [1, 4], "
	        "\"offset\": %d, \"init\": \"constant\", \"a\": 0}, ",
	        WM);
	fprintf(f,
	        "{\"name\": \"dense0.bias.momentum\", \"kind\": \"slot\", \"dtype\": \"f32\", \"shape\": [1], "
	        "\"offset\": %d, \"init\": \"constant\", \"a\": 0}",
	        BM);
	if (scaled()) {
		fprintf(f, ", {\"name\": \"loss_scale\", \"kind\": \"slot\", \"dtype\": \"f32\", \"shape\": [], "
		        "\"offset\": %d, \"init\": \"constant\", \"a\": 32}", SCALE);
		fprintf(f, ", {\"name\": \"loss_scale.good\", \"kind\": \"slot\", \"dtype\": \"f32\", \"shape\": [], "
		        "\"offset\": %d, \"init\": \"constant\", \"a\": 0}", GOOD);
		fprintf(f, ", {\"name\": \"loss_scale.skipped\", \"kind\": \"slot\", \"dtype\": \"f64\", "
		        "\"shape\": [], \"offset\": %d, \"init\": \"constant\", \"a\": 0}", SKIPPED);
	}
	if (accumulate > 1) {
		fprintf(f,
		        ", {\"name\": \"dense0.weight.grad\", \"kind\": \"grad\", \"dtype\": \"f32\", \"shape\": [1, "
		        "4], \"offset\": %d, \"init\": \"constant\", \"a\": 0}",
		        AW);
		fprintf(f,
		        ", {\"name\": \"dense0.bias.grad\", \"kind\": \"grad\", \"dtype\": \"f32\", \"shape\": [1], "
		        "\"offset\": %d, \"init\": \"constant\", \"a\": 0}",
		        AB);
		fprintf(f,
		        ", {\"name\": \"sums\", \"kind\": \"grad\", \"dtype\": \"f32\", \"shape\": [2], \"offset\": "
		        "%d, \"init\": \"constant\", \"a\": 0}",
		        SUMS);
	}
}

static char *
describe(int accumulate)
{
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	fprintf(f,
	        "{\"version\": 5, \"model\": \"line\", \"target\": \"test\", \"arch\": \"any\", "
	        "\"precision\": \"%s\", \"batch\": 8, \"source_hash\": \"0123456789abcdef\", "
	        "\"seed\": 3, \"epochs\": %s, \"sink\": %s, \"accumulate\": %d, \"shuffle\": true, \"full_only\": "
	        "\"%s\", \"memory_total\": %d, \"arena_bytes\": %d, "
	        "\"scratch_bytes\": 64, \"fault_offset\": %d, \"gflop_per_step\": 1e-6, \"bytes_per_step\": 1000, "
	        "\"parameters\": 5, \"parameter_bytes\": 20, ",
	        env("RTI_PRECISION", "f32"), env("RTI_EPOCHS", "3"), env("RTI_SINK", "\"epoch\""), accumulate,
	        env("RTI_FULL_ONLY", ""), ARENA, ARENA, FAULT);
	fprintf(f, "\"rate\": %s, \"reader\": %s, ",
	        env("RTI_RATE",
	            "{\"kind\": \"cosine\", \"from\": 0.001, \"peak\": 0.05, \"to\": 0.0001, \"warmup_epochs\": 0.5}"),
	        env("RTI_READER", "{\"kind\": \"npy\", \"train\": [\"x.npy\", \"y.npy\", \"label.npy\"], \"test\": "
	                          "[\"x.npy\", \"y.npy\", \"label.npy\"]}"));
	fprintf(f,
	        "\"inputs\": [{\"name\": \"x\", \"dtype\": \"f32\", \"shape\": [8, 4], \"limit\": 0, \"infer\": true}, "
	        "{\"name\": \"y\", \"dtype\": \"f32\", \"shape\": [8], "
	        "\"limit\": 0, \"infer\": false}, {\"name\": \"label\", \"dtype\": \"i32\", \"shape\": [8], \"limit\": "
	        "%s, \"infer\": false}], \"state\": [",
	        env("RTI_LIMIT", "3"));
	states(f, accumulate);
	fprintf(f, "], \"checks\": [{\"what\": \"embedding0: id\", \"limit\": 3, \"where\": \"line.net:3:9\", "
	           "\"per_example\": 1}], \"graphs\": {");
	graphs(f, accumulate);
	fprintf(f, "}, \"loops\": {\"train\": [{\"op\": \"shuffle\"}, {\"op\": \"repeat\", \"what\": \"steps\"}, ");
	if (accumulate > 1)
		fprintf(f,
		        "{\"op\": \"repeat\", \"what\": \"count\", \"count\": %d}, {\"op\": \"batch\", \"graph\": "
		        "\"train\"}, {\"op\": \"call\", \"graph\": \"train\"}, "
		        "{\"op\": \"end\"}, {\"op\": \"rate\"}, {\"op\": \"call\", \"graph\": \"update\"}, "
		        "{\"op\": \"emit\", \"graph\": \"update\"}, ",
		        accumulate);
	else
		fprintf(f, "{\"op\": \"batch\", \"graph\": \"train\"}, {\"op\": \"rate\"}, {\"op\": \"call\", "
		           "\"graph\": \"train\"}, {\"op\": \"emit\", \"graph\": \"train\"}, ");
	fprintf(f, "{\"op\": \"poll\"}, {\"op\": \"end\"}], \"eval\": [{\"op\": \"repeat\", \"what\": \"batches\"}, "
	           "{\"op\": \"batch\", \"graph\": \"eval\"}, "
	           "{\"op\": \"call\", \"graph\": \"eval\"}, {\"op\": \"emit\", \"graph\": \"eval\"}, {\"op\": "
	           "\"poll\"}, {\"op\": \"end\"}], "
	           "\"infer\": [{\"op\": \"call\", \"graph\": \"infer\"}]}}");
	fclose(f);
	return text;
}

#ifndef IMAGE_OF_A_DEVICE
int
main(int argc, char **argv)
{
	int accumulate = atoi(env("RTI_ACCUMULATE", "1"));
	RtCodeObject image = {.version = RT_VERSION,
	                 .nkernel = 6,
	                 .needs = env("RTI_NEEDS", ""),
	                 .kernel = kernels,
	                 .train = accumulate > 1 ? train_accumulate : train,
	                 .eval = eval,
	                 .infer = infer};
	const RtCodeObject *images[] = {&image};

	image.program = describe(accumulate);
	return rt_main(argc, argv, images, 1);
}
#endif
