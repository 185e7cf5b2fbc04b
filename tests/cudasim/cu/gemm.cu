// gemm.cu: D = A B^T of bfloat16 matrices with float sums: tiles of 64 x 64, three stages of cp.async, ldmatrix, mma.
// M, N multiples of 64, K of 32.
typedef unsigned u32;
typedef unsigned short u16;

__device__ __forceinline__ void
copy16(u32 to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

extern "C" __global__ void
gemm(float *d, const u16 *a, const u16 *b, int m, int n, int k)
{
	__shared__ __align__(16) u16 sa[3][64][40], sb[3][64][40];
	int t = threadIdx.x, w = t / 32, l = t % 32;
	const u16 *ga = a + (blockIdx.y * 64 + t / 2) * k + t % 2 * 16,
	          *gb = b + (blockIdx.x * 64 + t / 2) * k + t % 2 * 16;
	float c[8][4] = {};
	auto load = [&](int s, int at) {
		if (at < k) {
			u32 ta = __cvta_generic_to_shared(&sa[s][t / 2][t % 2 * 16]),
			    tb = __cvta_generic_to_shared(&sb[s][t / 2][t % 2 * 16]);

			copy16(ta, ga + at);
			copy16(ta + 16, ga + at + 8);
			copy16(tb, gb + at);
			copy16(tb + 16, gb + at + 8);
		}
		asm volatile("cp.async.commit_group;");
	};

	load(0, 0);
	load(1, 32);
	for (int at = 0, s = 0; at < k; at += 32, s = (s + 1) % 3) {
		asm volatile("cp.async.wait_group 1;" ::: "memory");
		__syncthreads();
		load((s + 2) % 3, at + 64);
		for (int kk = 0; kk < 32; kk += 16) {
			u32 x[4], y[2], p = __cvta_generic_to_shared(&sa[s][w * 16 + l % 16][kk + l / 16 * 8]);

			asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
			             : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
			             : "r"(p));
			for (int j = 0; j < 8; j++) {
				p = __cvta_generic_to_shared(&sb[s][j * 8 + l % 8][kk + l / 8 % 2 * 8]);
				asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
				             : "=r"(y[0]), "=r"(y[1])
				             : "r"(p));
				asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
				             "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				             : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
				             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
			}
		}
	}
	for (int j = 0; j < 8; j++)
		for (int i = 0; i < 4; i++)
			d[(blockIdx.y * 64 + w * 16 + l / 4 + i / 2 * 8) * n + blockIdx.x * 64 + j * 8 + l % 4 * 2 +
			  i % 2] = c[j][i];
}
