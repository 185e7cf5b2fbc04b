// speed.cu: loops to measure.

extern "C" __global__ void
arithmetic(float *x, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	float a = x[i], b = a * 0.5f, c = a + 1, d = b - 2;
	for (int k = 0; k < n; k++) {
		a = a * 1.0001f + b;
		b = b * 0.9999f + c;
		c = c * 0.5f + d;
		d = d * 0.25f + a;
	}
	x[i] = a + b + c + d;
}

extern "C" __global__ void
stream(float *y, const float *x, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		y[i] = x[i] > 0 ? x[i] * 2.0f + y[i] : 0;
}

extern "C" __global__ void
tile(float *c, const float *a, const float *b, int n)
{
	__shared__ float s[16][16], t[16][16];
	int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, q = blockIdx.x * 16 + x;
	float v = 0;
	for (int k = 0; k < n; k += 16) {
		s[y][x] = a[r * n + k + x];
		t[y][x] = b[(k + y) * n + q];
		__syncthreads();
		for (int i = 0; i < 16; i++)
			v += s[y][i] * t[i][x];
		__syncthreads();
	}
	c[r * n + q] = v;
}

extern "C" __global__ void
tensor(float *d, int n)
{
	unsigned a = threadIdx.x, b = 0x3f803f80;
	float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
	for (int i = 0; i < n; i++)
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
		             "{%5,%5}, {%0,%1,%2,%3};"
		             : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
		             : "r"(b), "r"(a & 0 | b));
	d[threadIdx.x] = c0 + c1 + c2 + c3;
}
