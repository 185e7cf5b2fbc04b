// kernels.cu: kernels of many kinds. test_kernels.c puts the functions walk() and wide(), which it compiles as C too,
// before them.

extern "C" __global__ void
k_walk(unsigned *to, unsigned n)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		to[i] = walk(i * 2654435761u >> 12, i % 97);
}

extern "C" __global__ void
k_wide(long long *to, unsigned n)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		to[i] = wide(0x123456789abcdefll * (i + 1), (long long)i * 0x9e3779b97f4a7c15ll, i % 13);
}

extern "C" __global__ void
k_math(float *to, const float *x, unsigned n)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	float v = x[i];
	to[i] = expf(v);
	to[n + i] = logf(fabsf(v));
	to[2 * n + i] = tanhf(v);
	to[3 * n + i] = powf(fabsf(v), 1.7f);
	to[4 * n + i] = sinf(v * 1000.0f);
	to[5 * n + i] = erff(v);
	to[6 * n + i] = rsqrtf(fabsf(v));
	to[7 * n + i] = 1.0f / v;
	to[8 * n + i] = fmodf(v, 0.37f);
	to[9 * n + i] = cbrtf(v);
	to[10 * n + i] = (float)exp((double)v);
	to[11 * n + i] = log1pf(fabsf(v));
}

__constant__ float weight[4] = {0.5f, 1.5f, 2.5f, 3.5f};

__device__ int visits = 5;

struct Pack {
	float4 v;
	int k;
};

__device__ __noinline__ float
dot(float4 a, const float *w)
{
	return a.x * w[0] + a.y * w[1] + a.z * w[2] + a.w * w[3];
}

extern "C" __global__ void
k_reduce(float *to, const float *x, unsigned n, Pack p)
{
	__shared__ float part[32];
	float s = 0;
	for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		s += x[i];
	for (int o = 16; o; o >>= 1)
		s += __shfl_xor_sync(~0u, s, o);
	if ((threadIdx.x & 31) == 0)
		part[threadIdx.x >> 5] = s;
	__syncthreads();
	if (threadIdx.x < 32) {
		s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
		for (int o = 16; o; o >>= 1)
			s += __shfl_down_sync(~0u, s, o);
		if (!threadIdx.x) {
			atomicAdd(to, s);
			atomicAdd(&visits, p.k);
		}
	}
	if (blockIdx.x == 0 && threadIdx.x == 0)
		to[1] = dot(p.v, weight);
}

extern "C" __global__ void
k_histogram(unsigned *to, const unsigned char *x, unsigned n)
{
	extern __shared__ unsigned bin[];
	for (int i = threadIdx.x; i < 256; i += blockDim.x)
		bin[i] = 0;
	__syncthreads();
	for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		atomicAdd(&bin[x[i]], 1u);
	__syncthreads();
	for (int i = threadIdx.x; i < 256; i += blockDim.x)
		atomicAdd(&to[i], bin[i]);
}

extern "C" __global__ void
k_transpose(float *to, const float *x, int n)
{
	__shared__ float t[32][33];
	int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32;
	for (int k = threadIdx.y; k < 32; k += blockDim.y)
		t[k][threadIdx.x] = x[(r + k) * n + c];
	__syncthreads();
	for (int k = threadIdx.y; k < 32; k += blockDim.y)
		to[(blockIdx.x * 32 + k) * n + r + threadIdx.x] = t[threadIdx.x][k];
}

extern "C" __global__ void
k_meet(volatile int *count, int *to)
{
	if (threadIdx.x == 0) {
		atomicAdd((int *)count, 1);
		while (*count < (int)gridDim.x) {
		}
		to[blockIdx.x] = *count;
	}
}

extern "C" __global__ void
k_double(double *sum, unsigned long long *bits, int n)
{
	double v = threadIdx.x * 0.25;
	unsigned long long *p = (unsigned long long *)sum, old = *p, seen;
	do {
		seen = old;
		old = atomicCAS(p, seen,
		                (unsigned long long)__double_as_longlong(v + __longlong_as_double((long long)seen)));
	} while (old != seen);
	atomicMax(bits, (unsigned long long)threadIdx.x << 33);
}

extern "C" __global__ void
k_votes(unsigned *to)
{
	unsigned t = threadIdx.x;
	to[t] = __ballot_sync(~0u, t % 3 == 0);
	to[32 + t] = __any_sync(~0u, t == 40);
	to[64 + t] = __all_sync(~0u, t < 40);
	to[96 + t] = __match_any_sync(~0u, t / 5);
	if (t % 2)
		to[128 + t] = __activemask();
	else
		to[128 + t] = __shfl_sync(0x55555555u, t, 6);
	to[160 + t] = __shfl_up_sync(~0u, t, 3, 8);
	to[192 + t] = __syncthreads_count(t < 9);
	to[224 + t] = __popc(t) + __clz(t) + __ffs(t) + __brev(t);
}

extern "C" __global__ void
k_local(int *to, int k)
{
	int a[24];
	for (int i = 0; i < 24; i++)
		a[i] = i * i;
	for (int i = 0; i < 24; i++)
		a[(i * 7 + k) % 24] += a[(i + (int)threadIdx.x) % 24];
	int s = 0;
	for (int i = 0; i < 24; i++)
		s = s * 3 + a[i];
	to[threadIdx.x] = s;
}
