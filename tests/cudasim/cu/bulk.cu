// bulk.cu: mbarrier, tensor copies, clusters, wgmma.
typedef unsigned u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct __align__(64) Map
{
	u64 v[16];
};

#define DEV __device__ __forceinline__
DEV u32
smem(const void *p)
{
	return (u32)__cvta_generic_to_shared(p);
}

DEV void
init(u64 *b, int n)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory");
}

DEV void
expect(u64 *b, int n)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory");
}

DEV void
arrive(u64 *b)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(b)) : "memory");
}

DEV void
wait(u64 *b, int phase)
{
	asm volatile("{\n.reg .pred P;\nW: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@P bra D;\n"
	             "bra W;\nD:\n}" ::"r"(smem(b)),
	             "r"(phase)
	             : "memory");
}

DEV void
tile2(void *to, const Map *m, int c, int r, u64 *b)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
	             "%3}], [%4];" ::"r"(smem(to)),
	             "l"(m), "r"(c), "r"(r), "r"(smem(b))
	             : "memory");
}

extern "C" __global__ void
tile(u16 *to, const __grid_constant__ Map m, int c, int r, int n)
{
	__shared__ __align__(1024) u16 s[4096];
	__shared__ u64 b;
	if (!threadIdx.x) {
		init(&b, 1);
	}
	__syncthreads();
	if (!threadIdx.x) {
		expect(&b, n * 2);
		tile2(s, &m, c, r, &b);
	}
	wait(&b, 0);
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		to[i] = s[i];
}

extern "C" __global__ void
put(const __grid_constant__ Map m, int c, int r, int n)
{
	__shared__ __align__(1024) u16 s[4096];
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		s[i] = i + 1;
	asm volatile("fence.proxy.async.shared::cta;");
	__syncthreads();
	if (!threadIdx.x) {
		asm volatile(
		        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&m),
		        "r"(c), "r"(r), "r"(smem(s))
		        : "memory");
		asm volatile("cp.async.bulk.commit_group;");
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
	}
}

extern "C" __global__ void
im2col(u16 *to, const __grid_constant__ Map m, int c, int w, int h, int k, int fw, int fh, int n)
{
	__shared__ __align__(1024) u16 s[8192];
	__shared__ u64 b;
	if (!threadIdx.x)
		init(&b, 1);
	__syncthreads();
	if (!threadIdx.x) {
		expect(&b, n * 2);
		asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
		             "[%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(smem(s)),
		             "l"(&m), "r"(c), "r"(w), "r"(h), "r"(k), "r"(smem(&b)), "h"((u16)fw), "h"((u16)fh)
		             : "memory");
	}
	wait(&b, 0);
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		to[i] = s[i];
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) pair(u32 *to, const __grid_constant__ Map m)
{
	__shared__ __align__(128) u16 s[512];
	__shared__ u32 v[32];
	__shared__ u64 b;
	u32 rank, other;
	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	v[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
	if (!threadIdx.x)
		init(&b, 1);
	__syncthreads();
	if (!threadIdx.x)
		expect(&b, 1024);
	asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
	             : "=r"(other)
	             : "r"(smem(&v[31 - threadIdx.x])), "r"(rank ^ 1));
	u32 x;
	asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(other) : "memory");
	if (!threadIdx.x)
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
		             "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem(s + rank * 256)),
		             "l"(&m), "r"(0), "r"((int)rank * 4), "r"(smem(&b)), "h"((u16)3)
		             : "memory");
	wait(&b, 0);
	to[blockIdx.x * 64 + threadIdx.x] = x;
	to[blockIdx.x * 64 + 32 + threadIdx.x] = s[threadIdx.x * 16];
	asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void
ring(u32 *to, const u32 *from, int n)
{
	__shared__ __align__(16) u32 s[2][64];
	__shared__ u64 full[2], empty[2];
	int t = threadIdx.x;
	if (!t) {
		for (int i = 0; i < 2; i++) {
			init(&full[i], 1);
			init(&empty[i], 64);
		}
	}
	__syncthreads();
	if (t < 32) {
		if (!t)
			for (int i = 0; i < n; i++) {
				if (i >= 2)
					wait(&empty[i % 2], (i / 2 - 1) & 1);
				expect(&full[i % 2], 256);
				asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
				             "[%1], 256, [%2];" ::"r"(smem(s[i % 2])),
				             "l"(from + i * 64), "r"(smem(&full[i % 2]))
				             : "memory");
			}
	} else {
		u32 v = 0;
		for (int i = 0; i < n; i++) {
			wait(&full[i % 2], i / 2 & 1);
			v = v * 3 + s[i % 2][t - 32];
			arrive(&empty[i % 2]);
		}
		to[t - 32] = v;
	}
}

DEV u64
desc(u32 at, u32 lead, u32 stride, u64 mode)
{
	return (u64)(at >> 4 & 0x3fff) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 | mode << 62;
}

#define C8(i) \
	"+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
	        "+f"(c[i + 7])
#define ACC "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
extern "C" __global__ void __launch_bounds__(128)
        group(float *d, const __grid_constant__ Map a, const __grid_constant__ Map b, int kind) {
	__shared__ __align__(1024) u16 sa[64 * 64], sb[64 * 32];
	__shared__ u64 bar;
	int t = threadIdx.x, w = t / 32, l = t % 32;
	float c[16];
	for (int i = 0; i < 16; i++)
		c[i] = 0;
	if (!t)
		init(&bar, 1);
	__syncthreads();
	if (!t) {
		expect(&bar, 64 * 64 * 2 + 64 * 32 * 2);
		tile2(sa, &a, 0, 0, &bar);
		tile2(sb, &b, 0, 0, &bar);
	}
	wait(&bar, 0);
	asm volatile("wgmma.fence.sync.aligned;");
	for (int k = 0; k < 64; k += 16) {
		u64 da = desc(smem(sa) + k * 2, 16, 1024, 1),
		    db = kind == 1 ? desc(smem(sb) + k * 64, 2048, 512, 2) : desc(smem(sb) + k * 2, 16, 1024, 1);
		u32 x[4];
		int r = w * 16 + l / 4;
		for (int i = 0; i < 4; i++) {
			int row = r + i % 2 * 8, col = k + l % 4 * 2 + i / 2 * 8,
			    p = row * 64 + ((col / 8 ^ row % 8) * 8) + col % 8;
			x[i] = sa[p] | (u32)sa[p + 1] << 16;
		}
		if (kind == 0)
			asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
			             "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " ACC
			             ", %16, %17, p, 1, 1, 0, 0;\n}"
			             : C8(0), C8(8)
			             : "l"(da), "l"(db), "r"(k));
		else if (kind == 1)
			asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
			             "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " ACC
			             ", %16, %17, p, 1, 1, 0, 1;\n}"
			             : C8(0), C8(8)
			             : "l"(da), "l"(db), "r"(k));
		else
			asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
			             "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " ACC
			             ", {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
			             : C8(0), C8(8)
			             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(db), "r"(k));
	}
	asm volatile("wgmma.commit_group.sync.aligned;");
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
	for (int i = 0; i < 16; i++)
		d[(w * 16 + l / 4 + i % 4 / 2 * 8) * 32 + i / 4 * 8 + l % 4 * 2 + i % 2] = c[i];
}
