/* loop.c: the kernels of the loop itself, a part of every module beside the model's own.
 *
 * In: the state in front of the arena and tables, both made by the runtime; their fields are the lists of rt.h.   Out:
 * CUDA C text. loop_call begins a call of a graph: seed, step and rate to where the graph reads them, and a batch
 * gathered by the epoch's order (addresses, where kernels read examples in the data set: inputs.c). It works after the
 * loop's end too, on some batch, so that what runs in vain reads sound inputs. loop_emit ends a step: a record for the
 * host, then whether to go on. */
#include "loop.h"
#include "../../runtime/rt.h"
#include <stddef.h>

#define FIELD(name) "\tlong long " #name ";\n"
const char *const cuda_loop_text[] = {
        "typedef struct LoopState {\n" RT_LOOP_STATE(
                FIELD) "} LoopState;\n"
                       "typedef struct LoopInput {\n" RT_LOOP_INPUT(
                               FIELD) "} LoopInput;\n"
                                      "typedef struct LoopResult {\n" RT_LOOP_RESULT(FIELD) "} LoopResult;\n"
                                                                                            "\n",
        "#define LOOP_COPY(T) ((T *)to)[at] = ((const T *)from)[at]\n"
        "/* n examples from number `first` of the order on, or their addresses, by all threads of the grid */\n"
        "static __device__ void loop_gather(char *arena, const LoopInput *in, const long long *order, long long first, "
        "long long n)\n"
        "{\n"
        "\tlong long per = in->unit ? in->bytes / in->unit : 1, all = n * per, stride = (long long)gridDim.x * "
        "blockDim.x;\n"
        "\tfor (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {\n"
        "\t\tlong long e = i / per, at = i - e * per;\n"
        "\t\tconst char *from = (const char *)in->data + (order ? order[first + e] : first + e) * in->stride;\n"
        "\t\tchar *to = arena + in->offset + e * in->bytes;\n"
        "\t\tif (in->unit == 0) ((const char **)(arena + in->offset))[e] = from;\n"
        "\t\telse if (in->unit == 16) LOOP_COPY(ulonglong2);\n"
        "\t\telse if (in->unit == 8) LOOP_COPY(long long);\n"
        "\t\telse if (in->unit == 4) LOOP_COPY(int);\n"
        "\t\telse if (in->unit == 2) LOOP_COPY(short);\n"
        "\t\telse LOOP_COPY(char);\n"
        "\t}\n"
        "}\n"
        "\n",
        "extern \"C\" __global__ void loop_call(char *arena, const LoopInput *in, long long inputs, long long n, long "
        "long micro, long long seed, long long step, long long rate)\n"
        "{\n"
        "\tconst LoopState *s = (const LoopState *)(arena - 256);\n"
        "\tif (blockIdx.x == 0 && threadIdx.x == 0) {\n"
        "\t\tif (seed >= 0) *(long long *)(arena + seed) = s->seed;\n"
        "\t\tif (step >= 0) *(long long *)(arena + step) = s->step;\n"
        "\t\tif (rate >= 0 && s->rates) *(double *)(arena + rate) = ((const double *)s->rates)[s->step < s->until ? "
        "s->step - s->base : 0];\n"
        "\t}\n"
        "\tif (inputs == 0) return;\n"
        "\tlong long batch = s->staged ? (s->step & 1) * s->accumulate + micro : ((s->step - s->start) * s->accumulate "
        "+ micro) % s->batches;\n"
        "\tfor (long long k = 0; k < inputs; k++)\n"
        "\t\tif (in[k].bytes > 0) loop_gather(arena, in + k, (const long long *)s->order, batch * s->batch, n);\n"
        "}\n"
        "\n",
        "/* bits: those that are all set in a loss that is not finite; 0 where it is always finite */\n"
        "extern \"C\" __global__ void loop_emit(char *arena, const LoopResult *result, long long results, long long "
        "loss, long long bits)\n"
        "{\n"
        "\tLoopState *s = (LoopState *)(arena - 256);\n"
        "\tif (s->status | *(long long *)arena) return;\n"
        "\tlong long *record = (long long *)s->ring + (s->records & s->mask) * s->words, lost = 0;\n"
        "\trecord[0] = s->step;\n"
        "\tfor (long long k = 0; k < results; k++) {\n"
        "\t\tconst char *at = arena + result[k].offset;\n"
        "\t\tlong long x = result[k].bytes == 8 ? *(const long long *)at : result[k].bytes == 4 ? *(const unsigned "
        "*)at : result[k].bytes == 2 ? *(const unsigned short *)at : *(const unsigned char *)at;\n"
        "\t\trecord[k + 1] = x;\n"
        "\t\tif (k == loss && bits && (x & bits) == bits) lost = 1;\n"
        "\t}\n"
        "\t__threadfence_system();\n"
        "\ts->records++;\n"
        "\t*(volatile long long *)s->head = s->records;\n"
        "\tif (lost && s->finite) { s->status = 3; return; }\n"
        "\ts->step++;\n"
        "\tif (s->step >= s->until || *(volatile long long *)s->mail) s->status = 1;\n"
        "}\n",
        NULL};

_Static_assert(RT_LOOP_BYTES == 256 && RT_STOPPED == 1 && RT_NOT_FINITE == 3, "numbers of the text");
