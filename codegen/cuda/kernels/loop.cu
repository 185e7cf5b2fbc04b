/* loop.cu: the kernels of the loop itself, a part of every module beside the model's own.
 *
 * In: the state in front of the arena and tables, both made by the runtime; their types stand before this text (loop.c).
 * loop_call begins a call of a graph: seed, step and rate to where the graph reads them, and a batch gathered by the
 * epoch's order (addresses, where kernels read examples in the data set: inputs.c). It works after the loop's end too,
 * on some batch, so that what runs in vain reads sound inputs. loop_emit ends a step: a record for the host, then
 * whether to go on. Becomes cuda_loop (embed.py). */

#define LOOP_COPY(T) ((T *)to)[at] = ((const T *)from)[at]
/* n examples from number `first` of the order on, or their addresses, by all threads of the grid */
static __device__ void loop_gather(char *arena, const LoopInput *in, const long long *order, long long first, long long n)
{
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

extern "C" __global__ void loop_call(char *arena, const LoopInput *in, long long inputs, long long n, long long micro, long long seed, long long step, long long rate)
{
	const LoopState *s = (const LoopState *)(arena - 256);
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (seed >= 0) *(long long *)(arena + seed) = s->seed;
		if (step >= 0) *(long long *)(arena + step) = s->step;
		if (rate >= 0 && s->rates) *(double *)(arena + rate) = ((const double *)s->rates)[s->step < s->until ? s->step - s->base : 0];
	}
	if (inputs == 0) return;
	long long batch = s->staged ? (s->step & 1) * s->accumulate + micro : ((s->step - s->start) * s->accumulate + micro) % s->batches;
	for (long long k = 0; k < inputs; k++)
		if (in[k].bytes > 0) loop_gather(arena, in + k, (const long long *)s->order, batch * s->batch, n);
}

/* bits: those that are all set in a loss that is not finite; 0 where it is always finite */
extern "C" __global__ void loop_emit(char *arena, const LoopResult *result, long long results, long long loss, long long bits)
{
	LoopState *s = (LoopState *)(arena - 256);
	if (s->status | *(long long *)arena) return;
	long long *record = (long long *)s->ring + (s->records & s->mask) * s->words, lost = 0;
	record[0] = s->step;
	for (long long k = 0; k < results; k++) {
		const char *at = arena + result[k].offset;
		long long x = result[k].bytes == 8 ? *(const long long *)at : result[k].bytes == 4 ? *(const unsigned *)at : result[k].bytes == 2 ? *(const unsigned short *)at : *(const unsigned char *)at;
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
