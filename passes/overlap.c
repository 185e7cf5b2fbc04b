/* overlap.c: which gradients travel while the backward half still runs, and the updates of others.
 *
 * In: a planned module with train.shards > 1, its states of kind grad side by side in the arena.   Out: settings
 * bucket.0, bucket.1, ..: runs of these states, each one range of the arena and nothing copied, with the group behind
 * which the bucket is complete: the last one that writes one of its states, or touches what stands there (processes put
 * sums in its place from then on); and graph update's group before which its sums are waited for: the first one that
 * reads one of them. Every state is in one bucket; buckets are in the order of their groups.
 * Boundaries end the exchange soonest, as far as is predicted: with a bucket sent when it is complete and the one
 * before is through, at the seconds and bytes/s of setting bucket.link (a described cluster's) or 50 us and 1 GB/s, and
 * groups at the target's rates, all of them as long as a shard was said to take. By dynamic
 * programming over the states from the last to the first, in which order backward makes them; exact for those. A
 * network that nobody described is taken to be slow: buckets that wait for it cost more than a message more.
 * Declines where there is one shard, and with --disable overlap: then all goes as one, behind the shard.
 * Codegen holds that nobody touches a bucket's states from its group on to where it is waited for (codegen/buckets.c).
 */
#include <math.h>
#include <string.h>
#include "passes.h"

enum { MOST = 16 };

/* group: it is complete behind it, the order'th of the graph */
typedef struct Item {
	const State *state;
	int group;
	uint32_t order;
	double bytes, ready;
} Item;

void
buckets_cut(const double *size, const double *done, uint32_t n, double start, double rate, uint32_t *cut, Arena *a)
{
	double *end = arena_array(a, double, (MOST + 1) * (n + 1)), best = 1e300;
	uint32_t *from = arena_array(a, uint32_t, (MOST + 1) * (n + 1)), most = n < MOST ? n : MOST, k = 1;

	for (uint32_t i = 1; i <= n; i++)
		end[i] = 1e300;
	for (uint32_t c = 1; c <= most; c++) {
		double *now = end + c * (n + 1), *before = now - (n + 1);

		now[0] = 1e300;
		for (uint32_t i = 1; i <= n; i++) {
			double bytes = 0, ready = 0;

			now[i] = 1e300;
			for (uint32_t j = i; j-- > 0;) {
				bytes += size[j];
				ready = done[j] > ready ? done[j] : ready;
				double at = (before[j] > ready ? before[j] : ready) + start + bytes / rate;

				if (at < now[i]) {
					now[i] = at;
					from[c * (n + 1) + i] = j;
				}
			}
		}
		best = now[n] < best ? now[n] : best;
	}
	while (end[k * (n + 1) + n] > best + start)
		k++;
	for (uint32_t i = n; i > 0; i = cut[i])
		cut[i] = from[k-- * (n + 1) + i];
}

typedef struct Link { double start, rate, shard; } Link;

static Link
link_of(const Module *m)
{
	const Setting *s = setting(m, LINK_SETTING);

	return (Link){setting_number(s, "start", LINK_START), setting_number(s, "rate", LINK_RATE),
	              setting_number(s, "shard", 0)};
}

/* The buffer that a value stands in, through views that move nothing. */
static Val
place_of(const Graph *g, Val v)
{
	for (const Op *op = val_op(g, v); op && op->group < 0 && view_moves_nothing(g, op); op = val_op(g, v))
		v = op->in[0];
	return v;
}

/* By group: its place in the order, the predicted seconds behind it, the last one so far that has a kernel. */
typedef struct Course {
	uint32_t *order;
	double *behind, *own, all; /* own: of that group alone */
	int *kernel, last;
} Course;

static double
count_bytes(const Graph *g, Val v, uint32_t *seen, uint32_t mark)
{
	v = place_of(g, v);
	if (g->val.at[v.id].offset < 0 || seen[v.id] == mark)
		return 0;
	seen[v.id] = mark;
	return (double)type_bytes(&g->val.at[v.id].type);
}

/* A store of what stands in the state's place already has no kernel. */
static bool
stands_there(Module *m, const Graph *g, const Op *op)
{
	return op->kind == OP_store &&
	       g->val.at[place_of(g, op->in[0]).id].offset == module_state(m, attr_str(op, A_state))->offset;
}

static Course
course_of(Module *m, const Graph *g, Rates r, Arena *a)
{
	Course c = {.order = arena_array(a, uint32_t, g->group.n + 1),
	            .behind = arena_array(a, double, g->group.n + 1),
	            .own = arena_array(a, double, g->group.n + 1),
	            .kernel = arena_array(a, int, g->group.n + 1),
	            .last = -1};
	uint32_t *seen = arena_array(a, uint32_t, g->val.n), n = 0;

	for (uint32_t i = 0; i < g->op.n;) {
		int group = g->op.at[i].group;
		double flops = 0, bytes = 0;
		bool works = false;

		if (g->op.at[i].dead || group < 0) {
			i++;
			continue;
		}
		n++;
		for (; i < g->op.n && (g->op.at[i].dead || g->op.at[i].group == group); i++) {
			const Op *op = &g->op.at[i];

			if (op->dead)
				continue;
			works |= !stands_there(m, g, op);
			flops += op_flops(g, op);
			for (int k = 0; k < op->nin; k++)
				bytes += count_bytes(g, op->in[k], seen, n);
			for (int k = 0; k < op->nout; k++)
				bytes += count_bytes(g, op->out[k], seen, n);
		}
		if (works || c.last < 0) {
			c.own[group] = fmax(flops / r.flops, bytes / r.bytes) + r.start;
			c.all += c.own[group];
			c.last = group;
		}
		c.order[group] = n;
		c.behind[group] = c.all;
		c.kernel[group] = c.last;
	}
	return c;
}

/* The group behind which nobody touches the state any more. */
static int
complete_behind(const Graph *g, const Course *c, const char *state)
{
	Val v = NOVAL;
	int behind = -1;

	for (uint32_t i = 0; i < g->op.n && !v.id; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->kind == OP_store && !strcmp(attr_str(op, A_state), state)) {
			v = place_of(g, op->in[0]);
			behind = op->group;
		}
	}
	for (uint32_t i = 0; v.id && i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool touches = val_op(g, v) == op;

		for (int k = 0; !op->dead && op->group >= 0 && k < op->nin; k++)
			touches |= place_of(g, op->in[k]).id == v.id;
		if (!op->dead && op->group >= 0 && touches && (behind < 0 || c->order[op->group] > c->order[behind]))
			behind = op->group;
	}
	return behind < 0 ? c->last : c->kernel[behind];
}

/* A bucket: items [from, to), complete behind a group; wait: graph update's first group that reads one, -1, and the
 * seconds of the update before it. */
typedef struct Bucket {
	uint32_t from, to, order;
	int group, wait;
	double bytes, ready, before;
} Bucket;

static void
sort_buckets(Bucket *b, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && b[k].order < b[k - 1].order; k--) {
			Bucket t = b[k];

			b[k] = b[k - 1];
			b[k - 1] = t;
		}
}

/* Where graph update reads the bucket's states first. */
static void
find_wait(const Graph *update, const Course *c, const Item *item, Bucket *b)
{
	b->wait = -1;
	b->before = c ? c->all : 0;
	for (uint32_t i = 0; update && i < update->op.n; i++) {
		const Op *op = &update->op.at[i];

		for (int k = 0; !op->dead && op->group >= 0 && k < op->nin; k++) {
			const Op *by = val_op(update, place_of(update, op->in[k]));

			for (uint32_t j = b->from; by && by->kind == OP_load && j < b->to; j++)
				if (!strcmp(attr_str(by, A_state), item[j].state->name) &&
				    (b->wait < 0 || c->order[op->group] < c->order[b->wait]))
					b->wait = op->group;
		}
	}
	if (b->wait >= 0)
		b->before = c->behind[b->wait] - c->own[b->wait];
}

/* bucket.N = states(first = .., last = .., group = .., wait = .., ready = part of the graph's time) */
static void
put_setting(Module *m, uint32_t n, const Graph *g, const Graph *update, const Item *item, const Bucket *b,
            double ready)
{
	Setting *arg = arena_array(m->arena, Setting, 5);
	const char *text[] = {item[b->to - 1].state->name, item[b->from].state->name, g->group.at[b->group].name,
	                      b->wait < 0 ? "" : update->group.at[b->wait].name};
	static const char *const name[] = {"first", "last", "group", "wait", "ready"};

	for (int i = 0; i < 4; i++)
		arg[i] = (Setting){.kind = SET_STR, .name = name[i], .s = text[i]};
	arg[4] = (Setting){.kind = SET_NUM, .name = name[4], .f = floor(ready * 1e4 + 0.5) / 1e4};
	vec_push(m->arena, &m->setting,
	         ((Setting){.kind = SET_CALL,
	                    .name = arena_printf(m->arena, "bucket.%u", (unsigned)n),
	                    .s = "states",
	                    .arg = arg,
	                    .nargs = 5}));
}

/* all: seconds of the shard; through: when the bucket before is; late: what updates have waited so far. Parts of the
 * exchange behind which the shard runs, and behind which updates of other buckets do. */
static void
tell(PassCtx *cx, const Graph *g, const Graph *update, const Item *item, const Bucket *b, uint32_t number, double all,
     Link l, double *through, double *late)
{
	double wire = l.start + b->bytes / l.rate, begin = fmax(*through, b->ready), end = begin + wire,
	       reads = all + *late + b->before, shard = all > begin ? fmin(1, (all - begin) / wire) : 0,
	       hidden = reads > begin ? fmin(1, (reads - begin) / wire) : 0;
	char how[96];
	int n;

	*through = end;
	*late += end > reads ? end - reads : 0;
	n = snprintf(how, sizeof how, hidden >= 1 ? "all hidden" : "%.0f %% hidden", 100 * hidden);
	if (hidden - shard >= 0.005)
		snprintf(how + n, sizeof how - (size_t)n, ", %.0f %% by updates before", 100 * (hidden - shard));
	verdict(cx, (Verdict){.pass = "overlap",
	                      .rule = "overlap.bucket",
	                      .graph = g->name,
	                      .a = "",
	                      .opa = "all_reduce",
	                      .fired = true,
	                      .why = arena_printf(cx->scratch,
	                                          "bucket %u: %u gradient%s, %s to %s, %.3g MB, complete behind %s at "
	                                          "%.0f %% of the shard, %.3g ms predicted, %s; waited for "
	                                          "%s%s",
	                                          (unsigned)number, (unsigned)(b->to - b->from),
	                                          b->to - b->from == 1 ? "" : "s", item[b->to - 1].state->name,
	                                          item[b->from].state->name, b->bytes * 1e-6,
	                                          g->group.at[b->group].name, 100 * b->ready / all, wire * 1e3, how,
	                                          b->wait < 0 ? "behind the update" : "before ",
	                                          b->wait < 0 ? "" : update->group.at[b->wait].name),
	                      .value = NAN,
	                      .loc = item[b->from].state->loc});
}

bool
pass_overlap(Module *m, PassCtx *cx)
{
	const Setting *shards = setting(m, "train.shards");
	const Graph *g = graph_named(m, "train", false), *update = graph_named(m, "update", false);
	Arena *a = cx->scratch;
	uint32_t n = 0, nbucket = 0, *cut;
	double through = 0, late = 0;

	if (!shards || shards->i < 2 || !g || !g->group.n || setting(m, "bucket.0"))
		return false;
	Course c = course_of(m, g, pass_rates(cx), a), then = {0};

	if (update)
		then = course_of(m, update, pass_rates(cx), a);
	Link l = link_of(m);
	double longer = l.shard > 0 && c.all > 0 ? l.shard / c.all : 1;
	Item *item = arena_array(a, Item, m->state.n);
	double *size = arena_array(a, double, m->state.n), *done = arena_array(a, double, m->state.n);

	for (uint32_t i = m->state.n; i-- > 0;)
		if (m->state.at[i].kind == ST_GRAD) {
			int group = complete_behind(g, &c, m->state.at[i].name);

			size[n] = (double)type_bytes(&m->state.at[i].type);
			done[n] = c.behind[group] * longer;
			item[n] = (Item){&m->state.at[i], group, c.order[group], size[n], done[n]};
			n++;
		}
	if (!n)
		return false;
	cut = arena_array(a, uint32_t, n + 1);
	buckets_cut(size, done, n, l.start, l.rate, cut, a);
	Bucket *b = arena_array(a, Bucket, n);

	for (uint32_t i = n; i > 0; i = cut[i]) {
		Bucket *to = &b[nbucket++];

		*to = (Bucket){.from = cut[i], .to = i};
		for (uint32_t k = cut[i]; k < i; k++) {
			to->bytes += item[k].bytes;
			if (item[k].order >= to->order) {
				to->order = item[k].order;
				to->group = item[k].group;
				to->ready = item[k].ready;
			}
		}
	}
	sort_buckets(b, nbucket);
	for (uint32_t i = 0; i < nbucket; i++) {
		find_wait(update, update ? &then : NULL, item, &b[i]);
		put_setting(m, i, g, update, item, &b[i], b[i].ready / (c.all * longer));
		tell(cx, g, update, item, &b[i], i, c.all * longer, l, &through, &late);
	}
	return true;
}
