/* ref.h: target ref, which interprets the IR in double behind the runtime's ordinary command line. */
#ifndef CODEGEN_REF_H
#define CODEGEN_REF_H
#include "../../ir/ir.h"
#include "../../ir/target.h"

extern const Target target_ref;
/* What the launcher of `build --target ref` runs: the executable's main for module m (stage diffed or later). Exit
 * status. */
int ref_main(Module *m, int argc, char **argv);
#endif
