/* loop.cu: the kernels of the loop itself, a part of every module beside the model's own.
 *
 * In: the state in front of the arena and tables, both made by the runtime; loop.c writes their types before this text.
 * loop_call begins a call of a graph: seed, step and rate to where the graph reads them, and a batch gathered by the
 * epoch's order (addresses, where kernels read examples in the data set: inputs.c). It works after the loop's end too,
 * on some batch, so that what runs in vain reads sound inputs. loop_loss, behind the kernel of the loss, ends the loop
 * while no parameter has changed where it is not finite. loop_emit ends a step: a record for the host, then whether to
 * go on. Shards of a batch (runtime/cuda/shards.c): loop_sum adds their gradients, loop_take, loop_tree and loop_give
 * join what they exchange within a step, loop_copy and loop_fault are of those that have an arena each; of several
 * processes loop_vote and loop_heed say and hear what all must know, loop_told the numbers of parts, loop_mark
 * tells the host where the device stands.
 * Becomes cuda_loop (embed.py). */

#define LOOP_COPY(T) ((T *)to)[at] = ((const T *)from)[at]
/* n examples from number `first` of the order on, or their addresses, by all threads of the grid */
static __device__ void loop_gather(char *arena, const LoopInput *in, const long long *order, long long first,
                                   long long n) {
	long long per = in->unit ? in->bytes / in->unit : 1, all = n * per, stride = (long long)gridDim.x * blockDim.x;
	for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
		long long e = i / per, at = i - e * per;
		const char *from = (const char *)in->data + (order ? order[first + e] : first + e) * in->stride;
		char *to = arena + in->offset + e * in->bytes;
		if (in->unit == 0) ((const char **)(arena + in->offset))[e] = from;
		else if (in->unit == 16) LOOP_COPY(ulonglong2);
		else if (in->unit == 8) LOOP_COPY(long long);
		else if (in->unit == 4) LOOP_COPY(int);
		else if (in->unit == 2) LOOP_COPY(short);
		else LOOP_COPY(char);
	}
}

extern "C" __global__ void loop_call(char *arena, const LoopInput *in, long long inputs, long long n, long long micro,
                                     long long seed, long long step, long long rate, long long first) {
	LoopState *s = (LoopState *)(arena - 256);
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (seed >= 0) *(long long *)(arena + seed) = s->seed;
		if (step >= 0) *(long long *)(arena + step) = s->step;
		if (rate >= 0 && s->rates)
			*(double *)(arena + rate) =
			        ((const double *)s->rates)[s->step < s->until ? s->step - s->base : 0];
		if (first >= 0) *(long long *)(arena + first) = micro * s->batch;
		if (inputs && !(s->status | *(const long long *)arena)) s->micro = micro;
	}
	if (inputs == 0) return;
	long long batch = s->staged ? (s->step & 1) * s->accumulate + micro
	                            : ((s->step - s->start) * s->accumulate + micro) % s->batches;
	for (long long k = 0; k < inputs; k++)
		if (in[k].bytes > 0) loop_gather(arena, in + k, (const long long *)s->order, batch * s->batch, n);
}

static __device__ long long loop_bits(const char *at, long long bytes)
{
	return bytes == 8   ? *(const long long *)at
	       : bytes == 4 ? *(const unsigned *)at
	       : bytes == 2 ? *(const unsigned short *)at
	                    : *(const unsigned char *)at;
}

/* bits: those that are all set in a loss that is not finite. The host repeats the step, and makes its record. */
extern "C" __global__ void loop_loss(char *arena, long long offset, long long bytes, long long bits)
{
	LoopState *s = (LoopState *)(arena - 256);
	if (s->finite && !(s->status | *(long long *)arena) && (loop_bits(arena + offset, bytes) & bits) == bits)
		s->status = 3;
}

/* bits: as of loop_loss; 0 where the loss is always finite */
extern "C" __global__ void loop_emit(char *arena, const LoopResult *result, long long results, long long loss,
                                     long long bits) {
	LoopState *s = (LoopState *)(arena - 256);
	if (s->status | *(long long *)arena) return;
	long long *record = (long long *)s->ring + (s->records & s->mask) * s->words, lost = 0;
	record[0] = s->step;
	for (long long k = 0; k < results; k++) {
		long long x = loop_bits(arena + result[k].offset, result[k].bytes);
		record[k + 1] = x;
		if (k == loss && bits && (x & bits) == bits) lost = 1;
	}
	__threadfence_system();
	s->records++;
	*(volatile long long *)s->head = s->records;
	if (lost && s->finite) { s->status = 3; return; }
	s->step++;
	if (s->step >= s->until || *(volatile long long *)s->mail) s->status = 1;
}

/* As in prelude.cu, without which a program written by hand has these kernels (tests/device). */
static __device__ float loop_half(unsigned short b) {
	float x;
	asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(b));
	return x;
}
static __device__ unsigned short loop_half_bits(float x) {
	unsigned short b;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x));
	return b;
}
static __device__ float loop_bf16(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
static __device__ unsigned short loop_bf16_bits(float x)
{
	unsigned u = __float_as_uint(x);
	return x != x ? (unsigned short)(u >> 16 | 0x40) : (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* out = left + right, or right where there is no left: bytes [low, high) of the states of kind grad, a block to a
 * part. In 16 bits the sum in f32 is rounded as once. */
extern "C" __global__ void loop_sum(const LoopPart *part, long long parts, char *out, const char *left,
                                    const char *right, long long low, long long high) {
	for (long long p = blockIdx.x; p < parts; p += gridDim.x) {
		const long long at = part[p].at, type = part[p].type, size = type == 1 ? 8 : type == 0 ? 4 : 2;
		const long long first = low > at ? (low - at) / size : 0,
		                n = high < at + part[p].n * size ? (high - at) / size : part[p].n;
		const char *l = left ? left + at : 0, *r = right + at;
		char *o = out + at;
		for (long long i = first + threadIdx.x; i < n; i += blockDim.x)
			if (type == 1) {
				double x = ((const double *)r)[i];
				((double *)o)[i] = l ? ((const double *)l)[i] + x : x;
			} else if (type == 0) {
				float x = ((const float *)r)[i];
				((float *)o)[i] = l ? ((const float *)l)[i] + x : x;
			} else {
				unsigned short x = ((const unsigned short *)r)[i],
				               y = l ? ((const unsigned short *)l)[i] : 0;
				((unsigned short *)o)[i] = !l          ? x
				                           : type == 2 ? loop_bf16_bits(loop_bf16(y) + loop_bf16(x))
				                                       : loop_half_bits(loop_half(y) + loop_half(x));
			}
	}
}

extern "C" __global__ void loop_copy(char *to, const char *from, long long bytes)
{
	long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, stride = (long long)gridDim.x * blockDim.x;
	for (long long i = first; i < bytes / 16; i += stride) ((ulonglong2 *)to)[i] = ((const ulonglong2 *)from)[i];
	for (long long i = bytes / 16 * 16 + first; i < bytes; i += stride) to[i] = from[i];
}

/* what kernels have left of this process's part of gradients, for all; and (give) what all have told, to its
 * places, n of them */
extern "C" __global__ void loop_told(char *arena, char *told, const LoopTold *place, long long n, long long give)
{
	for (long long k = blockIdx.x; k < n; k += gridDim.x)
		for (long long i = threadIdx.x; i < place[k].n; i += blockDim.x)
			if (give) arena[place[k].from + i] = told[place[k].at + i];
			else told[place[k].at + i] = arena[place[k].from + i];
}

/* a shard with an arena of its own has met a fault */
extern "C" __global__ void loop_fault(char *arena, const char *own, long long words, long long micro)
{
	if (*(const long long *)arena || !*(const long long *)own) return;
	for (long long i = words; i-- > 0;) ((long long *)arena)[i] = ((const long long *)own)[i];
	((LoopState *)(arena - 256))->micro = micro;
}

/* What this process says to all behind its last shard: the shard of its first fault or -1, what the host has as
 * mail, the fault. */
extern "C" __global__ void loop_vote(const char *arena, long long *vote, const long long *mail, long long words)
{
	vote[0] = *(const long long *)arena ? ((const LoopState *)(arena - 256))->micro : -1;
	vote[1] = *(volatile const long long *)mail;
	for (long long i = 0; i < words; i++) vote[2 + i] = ((const long long *)arena)[i];
}

/* What all have said: the first fault, as processes have their shards in order, is everybody's; a wish to stop
 * becomes mail. */
extern "C" __global__ void loop_heed(char *arena, const long long *vote, long long ranks, long long words,
                                     long long *mail) {
	LoopState *s = (LoopState *)(arena - 256);
	if (s->status) return;
	for (long long r = 0; r < ranks; r++, vote += 2 + words)
		if (vote[1] > *mail) *mail = vote[1];
	vote -= ranks * (2 + words);
	for (long long r = 0; r < ranks; r++, vote += 2 + words) {
		if (vote[0] < 0) continue;
		for (long long i = words; i-- > 0;) ((long long *)arena)[i] = vote[2 + i];
		s->micro = vote[0];
		return;
	}
}

/* odd: between two of these the device waits for other processes */
extern "C" __global__ void loop_mark(long long *mark)
{
	*(volatile long long *)mark = *mark + 1;
	__threadfence_system();
}

static __device__ double loop_read(long long type, const char *at, long long i)
{
	return type == 1   ? ((const double *)at)[i]
	       : type == 0 ? ((const float *)at)[i]
	       : type == 2 ? loop_bf16(((const unsigned short *)at)[i])
	                   : loop_half(((const unsigned short *)at)[i]);
}
static __device__ double loop_round(long long type, double x)
{
	return type == 1   ? x
	       : type == 0 ? (double)(float)x
	       : type == 2 ? (double)loop_bf16(loop_bf16_bits((float)x))
	                   : (double)loop_half(loop_half_bits((float)x));
}
static __device__ void loop_write(long long type, char *at, long long i, double x)
{
	if (type == 1) ((double *)at)[i] = x;
	else if (type == 0) ((float *)at)[i] = (float)x;
	else ((unsigned short *)at)[i] = type == 2 ? loop_bf16_bits((float)x) : loop_half_bits((float)x);
}

/* what a shard brings to joins, n of them; value: where */
extern "C" __global__ void loop_take(const char *arena, char *value, const LoopJoin *join, long long n)
{
	for (long long k = 0; k < n; k++)
		for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < join[k].count;
		     i += (long long)gridDim.x * blockDim.x) {
			loop_write(join[k].type, value + join[k].at, i,
			           loop_read(join[k].type, arena + join[k].from, i));
			if (join[k].moments)
				loop_write(join[k].type, value + join[k].at, join[k].count + i,
				           loop_read(join[k].type, arena + join[k].from2, i));
		}
}

/* The tree of runtime/exchange.c over what `shards` shards brought, `room` bytes each: a thread to an element,
 * complete nodes on a stack. A sum is rounded as it is
 * in its own type, moments go in f64 and are rounded at each node. */
extern "C" __global__ void loop_tree(const char *value, long long room, long long shards, char *root,
                                     const LoopJoin *join, long long n) {
	for (long long k = 0; k < n; k++)
		for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < join[k].count;
		     i += (long long)gridDim.x * blockDim.x) {
			const long long type = join[k].type;
			double mean[32], square[32], size[32]; /* fewer than 2^31 shards */
			int depth = 0;
			for (long long s = 0; s < shards; s++) {
				const char *at = value + s * room + join[k].at;
				mean[depth] = loop_read(type, at, i);
				square[depth] = join[k].moments ? loop_read(type, at, join[k].count + i) : 0;
				size[depth++] = 1;
				/* behind the last shard all that is left is one node after the other */
				while (depth > 1 && (s + 1 == shards || size[depth - 1] == size[depth - 2])) {
					double a = size[depth - 2], b = size[depth - 1], share = b / (a + b),
					       x = mean[depth - 2], y = mean[depth - 1];
					depth--;
					size[depth - 1] = a + b;
					if (!join[k].moments) {
						mean[depth - 1] =
						        type == 1 ? x + y
						                  : loop_round(type, (double)((float)x + (float)y));
						continue;
					}
					double d = y - x, v = __dadd_rn(__dmul_rn(square[depth - 1], 1 - share),
					                                __dmul_rn(square[depth], share));
					mean[depth - 1] = loop_round(type, __dadd_rn(x, __dmul_rn(d, share)));
					square[depth - 1] = loop_round(
					        type,
					        __dadd_rn(v, __dmul_rn(__dmul_rn(__dmul_rn(d, d), share), 1 - share)));
				}
			}
			loop_write(type, root + join[k].at, i, mean[0]);
			if (join[k].moments) loop_write(type, root + join[k].at, join[k].count + i, square[0]);
		}
}

extern "C" __global__ void loop_give(char *arena, const char *root, const LoopJoin *join, long long n)
{
	for (long long k = 0; k < n; k++)
		for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < join[k].count;
		     i += (long long)gridDim.x * blockDim.x) {
			if (join[k].to >= 0)
				loop_write(join[k].type, arena + join[k].to, i,
				           loop_read(join[k].type, root + join[k].at, i));
			if (join[k].moments && join[k].to2 >= 0)
				loop_write(join[k].type, arena + join[k].to2, i,
				           loop_read(join[k].type, root + join[k].at, join[k].count + i));
		}
}
