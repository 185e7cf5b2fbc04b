/* tensormap.h: what a CUtensorMap holds here. The machine's own layout is not public; programs must not look into
 * it. */
#ifndef TENSORMAP_H
#define TENSORMAP_H
#include <stdint.h>

#define TENSOR_MAP_MAGIC 0x70616d73u

typedef struct TensorMap {
	uint32_t magic;
	uint8_t rank, swizzle, fill_nan, im2col, bytes;
	uint8_t step[5];
	uint64_t address;
	uint32_t dim[5];
	uint16_t box[5], channels, pixels;
	int16_t lower[3], upper[3];
	uint64_t stride[4];
} TensorMap;
_Static_assert(sizeof(TensorMap) <= 128, "fits a CUtensorMap");

uint32_t swizzle(uint32_t at, int mode);
#endif
