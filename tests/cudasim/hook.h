/* hook.h: for simulated libraries that launch kernels of their own: work of the device that is a function of the
 * host. Exported beside the driver's calls. */
#ifndef HOOK_H
#define HOOK_H
#include "cu.h"

/* At the end of the stream, or into the graph that it captures, fn is called with a copy of data; a status other than 0
 * loses the device. To graphs it is a kernel. */
__attribute__((visibility("default"))) CUresult mantou_sim_call(CUstream s, int (*fn)(const void *data),
                                                                const void *data, size_t bytes);
/* Where bytes of the device lie for the host; NULL: they are not all of one allocation. Written ones count as written
 * from then on. */
__attribute__((visibility("default"))) void *mantou_sim_memory(CUdeviceptr at, size_t bytes, int write);
#endif
