/* compute.h: what the simulated cuDNN gives to the device: one contraction with its addresses. */
#ifndef COMPUTE_H
#define COMPUTE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Tensor { int dtype, rank; int64_t id, dim[4], stride[4]; unsigned long long at; } Tensor;
typedef struct Job {
	int kind;                /* of cuDNN's operation descriptors */
	Tensor x, w, y;          /* image, filter, result of the forward convolution; or the factors and the product */
	int64_t pad[2], stride[2], dilation[2], result; /* result: id of the tensor that is made */
	/* what follows a convolution: then y is where its end is written, in y's type */
	Tensor bias, add; bool biased, added, relu;
	unsigned long long workspace; int64_t workspace_bytes;
} Job;
typedef void *MemoryFn(unsigned long long at, size_t bytes, int write);

void compute_memory(void *fn); /* a MemoryFn */
int compute_run(const void *job);
#endif
