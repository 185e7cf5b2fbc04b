/* loop.c: the types that loop.cu reads, as text of the lists in rt.h that host and device share. */
#include "loop.h"
#include "../../runtime/rt.h"

#define FIELD(name) "\tlong long " #name ";\n"
#define TYPE(name, list) "typedef struct " name " {\n" list(FIELD) "} " name ";\n"

const char cuda_loop_types[] = TYPE("LoopState", RT_LOOP_STATE) TYPE("LoopInput", RT_LOOP_INPUT)
        TYPE("LoopResult", RT_LOOP_RESULT) TYPE("LoopPart", RT_LOOP_PART) TYPE("LoopJoin", RT_LOOP_JOIN)
                TYPE("LoopTold", RT_LOOP_TOLD) "\n";

_Static_assert(RT_LOOP_BYTES == 256 && RT_STOPPED == 1 && RT_NOT_FINITE == 3, "numbers of loop.cu");
