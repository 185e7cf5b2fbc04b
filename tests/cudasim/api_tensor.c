/* api_tensor.c: cuTensorMapEncode*: tensor maps, with the limits that the driver checks. */
#include <string.h>

#include "tensormap.h"
#include "work.h"

static const uint8_t type_size[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };

/* Common to both kinds: sizes, strides, alignment. */
static CUresult
encode(TensorMap *t, int type, unsigned rank, const void *at, const uint64_t *dim, const uint64_t *stride,
       const unsigned *step, int interleave, int swizzle_mode, int fill)
{
	if (type < 0 || type >= (int)sizeof type_size || rank < 1 || rank > 5 || interleave || swizzle_mode < 0 ||
	    swizzle_mode > 3 || (uintptr_t)at % 16 || !dim || !step)
		return CUDA_ERROR_INVALID_VALUE;
	*t = (TensorMap){.magic = TENSOR_MAP_MAGIC,
	                 .rank = (uint8_t)rank,
	                 .swizzle = (uint8_t)swizzle_mode,
	                 .fill_nan = (uint8_t)fill,
	                 .bytes = type_size[type],
	                 .address = (uintptr_t)at};
	for (unsigned d = 0; d < rank; d++) {
		if (!dim[d] || dim[d] > 1ull << 32 || !step[d] || step[d] > 8)
			return CUDA_ERROR_INVALID_VALUE;
		t->dim[d] = (uint32_t)dim[d];
		t->step[d] = (uint8_t)step[d];
	}
	for (unsigned d = 0; d + 1 < rank; d++) {
		if (stride[d] % 16 || stride[d] >= 1ull << 40)
			return CUDA_ERROR_INVALID_VALUE;
		t->stride[d] = stride[d];
	}
	return CUDA_SUCCESS;
}

CUresult
cuTensorMapEncodeTiled(CUtensorMap *to, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *stride,
                       const unsigned *box, const unsigned *step, int interleave, int swizzle_mode, int promotion,
                       int fill)
{
	TensorMap t;
	CUresult r;

	ENTER(false);
	(void)promotion;
	r = to && (uintptr_t)to % 64 == 0 && box
	            ? encode(&t, type, rank, at, dim, stride, step, interleave, swizzle_mode, fill)
	            : CUDA_ERROR_INVALID_VALUE;
	for (unsigned d = 0; !r && d < rank; d++) {
		r = !box[d] || box[d] > 256 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
		t.box[d] = (uint16_t)box[d];
	}
	if (!r && (box[0] * t.bytes % 16 || (swizzle_mode && box[0] * t.bytes > 16u << swizzle_mode)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		memset(to, 0, sizeof *to);
		memcpy(to, &t, sizeof t);
	}
	return api_leave(r);
}

CUresult
cuTensorMapEncodeIm2col(CUtensorMap *to, int type, unsigned rank, void *at, const uint64_t *dim, const uint64_t *stride,
                        const int *lower, const int *upper, unsigned channels, unsigned pixels, const unsigned *step,
                        int interleave, int swizzle_mode, int promotion, int fill)
{
	TensorMap t;
	CUresult r;

	ENTER(false);
	(void)promotion;
	r = to && (uintptr_t)to % 64 == 0 && lower && upper && rank >= 3
	            ? encode(&t, type, rank, at, dim, stride, step, interleave, swizzle_mode, fill)
	            : CUDA_ERROR_INVALID_VALUE;
	if (!r && (!channels || channels > 256 || !pixels || pixels > 1024 || channels * t.bytes % 16 ||
	           (swizzle_mode && channels * t.bytes > 16u << swizzle_mode)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		t.im2col = 1;
		t.channels = (uint16_t)channels;
		t.pixels = (uint16_t)pixels;
		for (unsigned d = 0; d + 2 < rank; d++) {
			t.lower[d] = (int16_t)lower[d];
			t.upper[d] = (int16_t)upper[d];
		}
		memset(to, 0, sizeof *to);
		memcpy(to, &t, sizeof t);
	}
	return api_leave(r);
}
