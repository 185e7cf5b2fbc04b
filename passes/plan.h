/* plan.h: what planning and code generation agree on. */
#ifndef PASSES_PLAN_H
#define PASSES_PLAN_H
#include "../ir/ir.h"

/* A view in no group that shares its operand's buffer: no kernel. */
bool plan_is_alias(const Graph *g, const Op *op);
#endif
