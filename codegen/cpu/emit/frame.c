/* frame.c: what every kernel of a group begins and ends with: its function, buffers, memory, record.
 *
 * In: a group (GroupCx) and the name of a part of it.   Out: a function in the LLVM module, or the one that is there
 * for the same structure (GroupCx.key, which group.c writes), and a KernelRec with the buffers' offsets, flops, bytes.
 * Buffers are listed in the order of first appearance, the same for all kernels of a group. */
#include "../cpu.h"
#include "../../space.h"
#include <ctype.h>
#include <string.h>

/* ---------------------------------------------------------------- memory */
bool
value_is_out(const GroupCx *gc, Val v)
{
	return gc->inside[v.id] && val_is_stored(gc->g, v);
}

int
group_buffer(GroupCx *gc, uint32_t val)
{
	if (gc->ws_of[val] >= 0)
		return gc->ws_of[val];
	if (gc->buf_of[val] < 0) {
		gc->buf_of[val] = (int)gc->buf.n;
		vec_push(gc->tmp, &gc->buf, ((Buffer){.val = val, .offset = gc->g->val.at[val].offset}));
	}
	return gc->buf_of[val];
}

int64_t
workspace_start(GroupCx *gc)
{
	int64_t at = gc->g->group.at[gc->group].workspace_offset;

	if (at < 0)
		bug("group %d has no workspace", gc->group);
	return at;
}

int
workspace_at(GroupCx *gc)
{
	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, workspace_start(gc)}));
	return (int)gc->buf.n - 1;
}

int
panels_at(GroupCx *gc)
{
	const Group *gr = &gc->g->group.at[gc->group];

	if (!gr->prepacked)
		return workspace_at(gc);
	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, gr->prepacked_offset}));
	return (int)gc->buf.n - 1;
}

void
scratch_plan(Graph *g, int64_t bytes)
{
	if (g->module->scratch_bytes < bytes)
		g->module->scratch_bytes = bytes;
}

void
scratch_check(GroupCx *gc, int64_t bytes)
{
	if (gc->c->m->scratch_bytes < bytes)
		gc->c->error = arena_printf(
		        gc->c->arena, "group %s needs %lld bytes of memory for each thread, the module plans %lld",
		        gc->g->group.at[gc->group].name, (long long)bytes, (long long)gc->c->m->scratch_bytes);
}

/* ---------------------------------------------------------------- kernels */
static const char *
symbol(GroupCx *gc, const char *part)
{
	const char *name = gc->group >= 0 ? gc->g->group.at[gc->group].name : NULL;
	char *s = arena_printf(gc->c->arena, "%s.%s", name ? name : gc->g->name, part);

	for (char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '.')
			*p = '_';
	return s;
}

static uint32_t *
function_slot(Compile *c, const char *key, uint64_t hash)
{
	for (uint64_t i = (hash ^ hash >> 32) & (c->fn_cap - 1);; i = (i + 1) & (c->fn_cap - 1)) {
		const FnRec *f = c->fn_slot[i] ? &c->fns.at[c->fn_slot[i] - 1] : NULL;

		if (!f || (f->hash == hash && !strcmp(f->key, key)))
			return &c->fn_slot[i];
	}
}

static void
function_table_grow(Compile *c)
{
	c->fn_cap = c->fn_cap ? 2 * c->fn_cap : 256;
	c->fn_slot = arena_array(c->arena, uint32_t, c->fn_cap);
	for (uint32_t i = 0; i < c->fns.n; i++)
		*function_slot(c, c->fns.at[i].key, c->fns.at[i].hash) = i + 1;
}

/* Do the group's kernels leave the work to microkernels? */
static bool
calls_micro(const GroupCx *gc)
{
	switch (space_family_of("cpu", NULL, gc->group >= 0 ? gc->g->group.at[gc->group].kernel : NULL)) {
	case FAMILY_cpu_brgemm:
	case FAMILY_cpu_brgemm_dw:
	case FAMILY_cpu_winograd:
	case FAMILY_cpu_strassen:
	case FAMILY_cpu_lowered:
	case FAMILY_cpu_rnn:
	case FAMILY_cpu_rnn_strassen:
	case FAMILY_cpu_attention: return true;
	default: return false;
	}
}

int
kernel_begin(GroupCx *gc, Emit *e, const char *part, bool *fresh)
{
	Compile *c = gc->c;
	const char *key = arena_printf(gc->tmp, "%s|%s|%s", gc->key, part, gc->g->training ? "t" : "e");
	uint64_t hash = hash_bytes(HASH_START, key, strlen(key));

	gc->part = part;
	*e = (Emit){.arena = gc->tmp, .m = c->m, .g = gc->g, .eval = gc->eval};
	if (2 * c->fns.n >= c->fn_cap)
		function_table_grow(c);
	uint32_t *slot = function_slot(c, key, hash);

	*fresh = !*slot;
	if (*slot) {
		e->uses_scratch = c->fns.at[*slot - 1].scratch;
		return c->fns.at[*slot - 1].fn;
	}
	emit_begin(e, &c->l, gc, symbol(gc, part));
	e->opaque = !strcmp(part, "main") && calls_micro(gc);
	vec_push(c->arena, &c->fns,
	         ((FnRec){.key = arena_strdup(c->arena, key),
	                  .hash = hash,
	                  .fn = (int)c->fn.n,
	                  .name = symbol(gc, part)}));
	vec_push(c->arena, &c->fn, e->fn);
	*slot = c->fns.n;
	return (int)c->fn.n - 1;
}

static double
kernel_flops(const GroupCx *gc)
{
	double f = -gc->flops_less;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (!op->dead)
			f += op_flops(gc->g, op);
	}
	return f;
}

/* Bytes of v that the group's kernels touch: of a table whose rows are taken or added to, as many as there are ids. */
static double
touched(const GroupCx *gc, uint32_t v)
{
	const Graph *g = gc->g;
	int64_t all = type_bytes(&g->val.at[v].type), rows = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];
		bool table = !op->dead &&
		             ((op->kind == OP_take && op->in[0].id == v) ||
		              (op_has((OpKind)op->kind, T_INPLACE) && (op->in[0].id == v || op->out[0].id == v)));

		if (table)
			rows += type_bytes(val_type(g, op->kind == OP_take ? op->out[0] : op->in[1]));
		for (int k = 0; !op->dead && !table && k < op->nin; k++)
			if (op->in[k].id == v)
				return (double)all;
	}
	return (double)(rows && rows < all ? rows : all);
}

void
kernel_end(GroupCx *gc, Emit *e, GraphKernels *gk, int fn, Rows r, bool fresh, bool check)
{
	Compile *c = gc->c;
	int64_t *off = arena_array(c->arena, int64_t, gc->buf.n);
	/* what a workspace holds is written once and read once */
	double bytes = gc->group >= 0 ? 2.0 * (double)gc->g->group.at[gc->group].workspace : 0;

	if (fresh) {
		c->fn.at[fn] = emit_end(e);
		c->fns.at[fn].scratch = e->uses_scratch;
	}
	for (uint32_t i = 0; i < gc->buf.n; i++) {
		off[i] = gc->buf.at[i].offset;
		if (gc->buf.at[i].val)
			bytes += touched(gc, gc->buf.at[i].val);
	}
	vec_push(c->arena, &gk->k,
	         ((KernelRec){.name = symbol(gc, gc->part),
	                      .fn = fn,
	                      .off = off,
	                      .noff = (int)gc->buf.n,
	                      .group = gc->group,
	                      .rows = r.rows,
	                      .mul = r.mul,
	                      .div = r.div,
	                      .grain = r.grain,
	                      .shares = r.shares,
	                      .whole = r.whole > 1 ? r.whole : 0,
	                      .turns = r.turns,
	                      .threads = gc->threads,
	                      .each = r.each,
	                      .check = check,
	                      .scratch = e->uses_scratch,
	                      .once = gc->once || (gc->group >= 0 && gc->g->group.at[gc->group].once),
	                      .flops = 0,
	                      .bytes = 0}));
	/* the group's figures stand with one of its kernels: the first, or the one that says it does the work */
	uint32_t at = gk->k.n - 1;

	if (gc->nkernel++ && strcmp(gc->part, "main") != 0) {
		gk->k.at[gc->main_kernel].bytes =
		        bytes > gk->k.at[gc->main_kernel].bytes ? bytes : gk->k.at[gc->main_kernel].bytes;
		return;
	}
	if (gc->nkernel > 1)
		gk->k.at[gc->main_kernel].flops = gk->k.at[gc->main_kernel].bytes = 0;
	gc->main_kernel = at;
	gk->k.at[at].flops = kernel_flops(gc);
	gk->k.at[at].bytes = bytes;
}
