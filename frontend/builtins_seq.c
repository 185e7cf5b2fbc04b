/* builtins_seq.c: attention, lstm and gru: composite ops of the IR, whose time loop or row log-sum stays inside.
 *
 * The recurrent layers make PyTorch's four parameters (weight_ih, weight_hh, bias_ih, bias_hh), uniform in
 * +-1/sqrt(hidden); weight = [w_ih, w_hh] and bias = [b_ih, b_hh] give existing tensors instead. start and the biases
 * stand in the op always, as zeros where the model has none. */
#include "builtins.h"

/* ---------------------------------------------------------------- attention */

static bool
attention_mask(Call *c, Val q, Val k, bool *has, Val *mask)
{
	const Value *v = call_arg(c, "mask");

	*has = v->kind != V_NONE;
	if (!*has)
		return true;
	if (!arg_tensor(c, "mask", mask))
		return false;
	Type t = val_type_of(c, *mask), tq = val_type_of(c, q), tk = val_type_of(c, k);
	if (t.dtype != DT_bool && !dtype_is_float(t.dtype))
		return call_fail(c, call_loc(c, "mask"),
		                 "mask is %s, needs bool (keeps where true) or %s (is added): compare, or cast",
		                 val_text(c, *mask), dtype_info[tq.dtype].name);
	if (t.dtype != DT_bool && !same_dtype(c, "q", q, "mask", *mask))
		return false;
	int64_t queries = tq.axis[tq.rank - 2].n, keys = tk.axis[tk.rank - 2].n;
	int64_t columns = t.rank > 0 ? t.axis[t.rank - 1].n : 1, rows = t.rank > 1 ? t.axis[t.rank - 2].n : 1;
	if ((columns != 1 && columns != keys) || (rows != 1 && rows != queries)) {
		call_fail(c, call_loc(c, "mask"), "mask is %s, the scores are [..., %lld, %lld]", val_text(c, *mask),
		          (long long)queries, (long long)keys);
		call_note_val(c, "mask", *mask);
		return false;
	}
	return true;
}

static bool
attention_agree(Call *c, Val q, Val k, Val v)
{
	static const char *const names[] = {"q", "k", "v"};
	Val all[] = {q, k, v};
	Type t[3];

	for (int i = 0; i < 3; i++) {
		t[i] = val_type_of(c, all[i]);
		if (t[i].rank < 2) {
			call_fail(c, c->loc, "%s is %s, needs at least 2 axes [..., T, D]", names[i],
			          val_text(c, all[i]));
			call_note_val(c, names[i], all[i]);
			return false;
		}
		if (i && !same_dtype(c, "q", q, names[i], all[i]))
			return false;
	}
	if (t[0].axis[t[0].rank - 1].n != t[1].axis[t[1].rank - 1].n) {
		call_fail(c, c->loc, "q is %s, k is %s; their last axes must agree", val_text(c, q), val_text(c, k));
		call_note_val(c, "q", q);
		call_note_val(c, "k", k);
		return false;
	}
	if (t[1].axis[t[1].rank - 2].n != t[2].axis[t[2].rank - 2].n) {
		call_fail(c, c->loc, "k is %s, v is %s; both need as many rows as there are keys", val_text(c, k),
		          val_text(c, v));
		call_note_val(c, "k", k);
		call_note_val(c, "v", v);
		return false;
	}
	return true;
}

bool
builtin_attention(Call *c, Value *result)
{
	bool causal, has_mask;
	double scale, p;
	Val in[6];
	int n = 3;

	if (!arg_float_tensor(c, "q", &in[0]) || !arg_float_tensor(c, "k", &in[1]) ||
	    !arg_float_tensor(c, "v", &in[2]) || !attention_agree(c, in[0], in[1], in[2]) ||
	    !arg_bool(c, "causal", &causal) || !arg_num(c, "dropout", 0, 1, &p) ||
	    !attention_mask(c, in[0], in[1], &has_mask, &in[3]))
		return false;
	n += has_mask;
	Type tq = val_type_of(c, in[0]);
	if (call_arg(c, "scale")->kind == V_NONE)
		scale = 1 / sqrt((double)tq.axis[tq.rank - 1].n);
	else if (!arg_num(c, "scale", -INFINITY, INFINITY, &scale))
		return false;
	if (!c->training)
		p = 0;
	if (p > 0) {
		in[n++] = graph_need_input(call_graph(c), IN_SEED);
		in[n++] = graph_need_input(call_graph(c), IN_STEP);
	}
	Val y = build_op(c->b, OP_attention, in, n,
	                 ATTRS(AF(scale, scale), AB(causal, causal), AB(has_mask, has_mask), AF(p, p),
	                       AS(stream, p > 0 ? c->path : "")),
	                 NULL);
	if (call_give(c, y, result))
		return true;
	for (int i = 0; i < 3; i++)
		call_note_val(c, i == 0 ? "q" : i == 1 ? "k" : "v", in[i]);
	return false;
}

/* ---------------------------------------------------------------- recurrent layers */

/* One of the pair that weight = [..] or bias = [..] may give. */
static bool
pair_item(Call *c, const char *name, int i, const Value **item)
{
	const Value *v = call_arg(c, name);

	*item = NULL;
	if (v->kind == V_NONE || v->kind == V_BOOL)
		return true;
	if (v->kind != V_LIST || v->n != 2)
		return call_fail(c, call_loc(c, name), "%s is %s, needs a list of 2 tensors [%s_ih, %s_hh]", name,
		                 value_text(c, v), name, name);
	*item = &v->at[i];
	return true;
}

static bool
recurrent_params(Call *c, DType t, int64_t gates, int64_t width, int64_t hidden, Val out[4])
{
	static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
	const Value *bias = call_arg(c, "bias");
	double edge = 1 / sqrt((double)hidden);
	Init even = {INIT_UNIFORM, -edge, edge}, init;
	int64_t rows = gates * hidden;

	if (bias->kind != V_BOOL && bias->kind != V_LIST)
		return call_fail(c, call_loc(c, "bias"), "bias is %s, needs true, false or a list of 2 tensors",
		                 value_text(c, bias));
	for (int i = 0; i < 4; i++) {
		int64_t dims[] = {rows, i == 0 ? width : hidden};
		const Value *given;

		if (!pair_item(c, i < 2 ? "weight" : "bias", i % 2, &given))
			return false;
		if (i >= 2 && bias->kind == V_BOOL && !bias->i) {
			out[i] = build_full(c->b, type_of(t, 1, (Axis[]){axis(rows)}), 0);
			continue;
		}
		if (i < 2 && !init_value(c, "init", even, (Fans){(double)dims[1], (double)rows, NULL}, &init))
			return false;
		if (!own_param(c, names[i], given, t, i < 2 ? 2 : 1, dims,
		               i < 2 ? "[gates * hidden, in]" : "[gates * hidden]", i < 2 ? init : even, &out[i]))
			return false;
	}
	return true;
}

/* start = [h] or [h, c], each [N, hidden]. */
static bool
recurrent_start(Call *c, Val x, int64_t hidden, int n, Val *out)
{
	static const char *const names[] = {"start[0]", "start[1]"};
	const Value *v = call_arg(c, "start");
	Type tx = val_type_of(c, x), want = type_of(tx.dtype, 2, (Axis[]){tx.axis[0], axis(hidden)});

	if (v->kind != V_NONE && (v->kind != V_LIST || v->n != n))
		return call_fail(c, call_loc(c, "start"), "start is %s, needs a list of %d tensor%s [N, hidden]",
		                 value_text(c, v), n, n == 1 ? "" : "s");
	for (int i = 0; i < n; i++) {
		if (v->kind == V_NONE) {
			out[i] = build_full(c->b, want, 0);
			continue;
		}
		if (v->at[i].kind != V_TENSOR)
			return call_fail(c, v->at[i].loc, "%s is %s, needs a tensor", names[i],
			                 value_text(c, &v->at[i]));
		out[i] = v->at[i].tensor;
		Type t = val_type_of(c, out[i]);
		if (t.dtype != want.dtype || !type_same_shape(&t, &want)) {
			call_fail(c, call_loc(c, "start"), "%s is %s, needs %s[%lld,%lld] [N, hidden]", names[i],
			          val_text(c, out[i]), dtype_info[tx.dtype].name, (long long)tx.axis[0].n,
			          (long long)hidden);
			call_note_val(c, names[i], out[i]);
			return false;
		}
	}
	return true;
}

/* length [N] of any integer type. */
static bool
recurrent_length(Call *c, Val x, bool *has, Val *out)
{
	Type tx = val_type_of(c, x);

	*has = call_arg(c, "length")->kind != V_NONE;
	if (!*has)
		return true;
	if (!arg_int_tensor(c, "length", out))
		return false;
	Type t = val_type_of(c, *out);
	if (t.rank != 1 || t.axis[0].n != tx.axis[0].n) {
		call_fail(c, call_loc(c, "length"), "length is %s, needs one number per example: i32[%lld]",
		          val_text(c, *out), (long long)tx.axis[0].n);
		call_note_val(c, "length", *out);
		return false;
	}
	*out = to_dtype(c, *out, DT_i32);
	return true;
}

/* states: 2 for lstm (h, c), 1 for gru (h); want_state: they are results too. */
static bool
recurrent(Call *c, OpKind k, int states, bool want_state, Value *result)
{
	int64_t hidden, width, steps;
	bool reverse, has_length;
	Val in[8];
	int n = 5 + states;

	if (!arg_float_tensor(c, "x", &in[0]) || !arg_rank(c, "x", in[0], 3, "[N, T, C]") ||
	    !axis_fixed(c, "input", in[0], 1, &steps) || !axis_fixed(c, "input", in[0], 2, &width) ||
	    !arg_int(c, "hidden", 1, INT32_MAX / 4, &hidden) || !arg_bool(c, "reverse", &reverse))
		return false;
	DType t = val_type(call_graph(c), in[0])->dtype;
	if (!recurrent_params(c, t, k == OP_lstm ? 4 : 3, width, hidden, in + 1) ||
	    !recurrent_start(c, in[0], hidden, states, in + 5) || !recurrent_length(c, in[0], &has_length, &in[n]))
		return false;
	n += has_length;
	Val y = build_op(c->b, k, in, n, ATTRS(AB(reverse, reverse), AB(has_length, has_length)), NULL);
	if (!want_state || !y.id)
		return call_give(c, y, result);
	const Op *op = build_last(c->b);
	Value part[3];
	for (int i = 0; i <= states; i++) /* lstm also gives c of every step, for backward */
		part[i] = value_tensor(op->out[i == 0 ? 0 : k == OP_lstm ? i + 1 : i], c->loc);
	*result = value_tuple(c->sema, part, 1 + states, c->loc);
	return true;
}

bool
builtin_lstm(Call *c, Value *result)
{
	return recurrent(c, OP_lstm, 2, false, result);
}

bool
builtin_gru(Call *c, Value *result)
{
	return recurrent(c, OP_gru, 1, false, result);
}

bool
builtin_lstm_state(Call *c, Value *result)
{
	return recurrent(c, OP_lstm, 2, true, result);
}

bool
builtin_gru_state(Call *c, Value *result)
{
	return recurrent(c, OP_gru, 1, true, result);
}
