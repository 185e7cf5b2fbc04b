/* test_text.c: IR text there and back, hand-written short forms, every kind of refusal with its place, and the
 * verifier. */
#include "unit.h"
#include "ir.h"
#include <stdlib.h>
#include <string.h>

typedef struct Read { Arena *a; Diags *d; Module *m; char *messages; size_t nmessages; } Read;

static Read
read_text(const char *text)
{
	Read r = {.a = arena_new()};
	FILE *f = open_memstream(&r.messages, &r.nmessages);

	r.d = arena_new_of(r.a, Diags);
	diags_init(r.d, r.a, f);
	r.m = module_parse(r.a, r.d, "t.ir", text, strlen(text));
	fclose(f);
	return r;
}

static void
done(Read *r)
{
	free(r->messages);
	arena_free(r->a);
}

/* Everything that print.c can write, at once; no pass would make this. */
static const char everything[] =
        "module \"a module\" {batch=64 stage=planned hash=00000000000000ff target=cpu arch=x86-64-v3 arena_bytes=4096 "
        "scratch_bytes=128}\n"
        "setting train.batch = 64\n"
        "setting train.optimizer = momentum(rate = poly(from = 0.01, to = 1e-05), momentum = 0.9, nesterov = false)\n"
        "setting train.freeze = [\"a\", \"b c\"]\n"
        "setting train.clip_norm = none\n"
        "setting train.x = -1.0\n"
        "setting train.sink = epoch\n"
        "state @stem.conv2d0.weight : f32[6,1,5,5]@2310 = normal(0, 0.1) {kind=param decay} at 64 !lenet.net:8:12\n"
        "state @s : bf16[] = uniform(-inf, 2) {kind=slot frozen}\n"
        "state @\"odd name\" : i64[3] = constant(1e+300) {kind=stat}\n"
        "\n"
        "graph eval(%x: f32[N<=64,2N<=128,3N/2<=96] at 0, %seed: i64[] = seed, %step: i64[] = step as \"batch "
        "number\", %r: f64[] = rate)"
        " -> loss %l, loss second %l, metric accuracy %l, metric %l, output y %t, norm %l"
        " full_only \"add: \\\"why\\\"\" !lenet.net:1:2 multiple 2 !lenet.net:3:4 {\n"
        "  group #0 first \"rows{vec=16}\" workspace 64 at 128 prepacked 192 prepacked_at 256\n"
        "  group #1 second\n"
        "  %w = load {state=stem.conv2d0.weight} : f32[6,1,5,5]@2310\n"
        "  %t = transpose %x {perm=[1,0,2]} : f32[2N<=128,N<=64,3N/2<=96]@021 #0 at 64 !lenet.net:3:4 \"a\\\\b\\\"\"\n"
        "  %\"odd %name\", %v = moments %x {axes=[0,1,2] keep=true} : f32[1,1,1], f32[1,1,1] #1 at none, 256 !?:7:7\n"
        "  %l = mean %x {axes=[0,1,2]} : f32[] #1 at 320\n"
        "  %f = full {value=-0.0} : f32[2]\n"
        "  %g = full {value=9223372036854775807} : i64[2]\n"
        "  %h = full {value=1e+22} : f64[2]\n"
        "  %k = full {value=nan} : f64[2]\n"
        "  %u = random %seed, %step {stream=\"a b\\x01\"} : f32[3]\n"
        "  %e = elu %f {alpha=0.25} : f32[2]\n"
        "  check %g {limit=10 what=label has_ignore=true ignore=-100} !lenet.net:9:1\n"
        "  store %w {state=stem.conv2d0.weight} #0\n"
        "}\n"
        "\n"
        "graph train() -> output %c evaluation {\n"
        "  %c = full {value=1} : f32[2]\n"
        "}\n"
        "\n"
        "loop train() {\n"
        "  %o = shuffle : i64[]\n"
        "  repeat {what=steps} {\n"
        "    repeat {what=steps count=4} {\n"
        "      %a, %l = batch %o : u8[64,1,28,28], i32[64]\n"
        "      %loss = call %a, %l {graph=train} : f32[2] !lenet.net:1:1 \"layer\"\n"
        "    }\n"
        "    emit %loss\n"
        "    poll\n"
        "  } !lenet.net:9:9\n"
        "}\n";

static void
everything_reads_back(void **state)
{
	Read r = read_text(everything);
	Buf b = {0}, c = {0};

	assert_string_equal(r.messages, "");
	assert_non_null(r.m);
	module_print(&b, r.m);
	assert_string_equal(b.at, everything);
	module_print(&c, module_clone(r.m, r.a));
	assert_string_equal(c.at, everything);
	buf_free(&b);
	buf_free(&c);
	done(&r);
}

static void
short_forms_are_completed(void **state)
{
	static const char *const cases[][2] = {
	        {"graph g(%x: f32[4,3]) -> %y { ; a comment\n\n  %y = relu %x ; another\n}",
	         "graph g(%x: f32[4,3]) -> output %y {\n  %y = relu %x : f32[4,3]\n}\n"},
	        {"graph g(\n  %x: f32[N<=8],\n  %i: i64[] = seed\n) -> loss %m {\n  %m = mean %x {axes=[0]}\n}\n",
	         "graph g(%x: f32[N<=8], %i: i64[] = seed) -> loss %m {\n  %m = mean %x {axes=[0]} : f32[]\n}\n"},
	        {"graph g(%x: f32[4]) -> %b {\n%a=leaky_relu %x {slope=0.01}\n%b = clamp %a { low = -1.0, high=1e0 } "
	         "#0\n}",
	         "graph g(%x: f32[4]) -> output %b {\n  group #0 g_group0\n  %a = leaky_relu %x : f32[4]\n  %b = clamp "
	         "%a {low=-1 high=1} : f32[4] #0\n}\n"},
	        {"loop l() {\n repeat {what=steps}\n poll\n end\n}",
	         "loop l() {\n  repeat {what=steps} {\n    poll\n  }\n}\n"},
	        {"loop l() { repeat {what=steps} { poll } }",
	         "loop l() {\n  repeat {what=steps} {\n    poll\n  }\n}\n"},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Read r = read_text(cases[i][0]);
		Buf b = {0};

		assert_string_equal(r.messages, "");
		graph_print(&b, r.m->graph.at[0]);
		assert_string_equal(b.at, cases[i][1]);
		buf_free(&b);
		done(&r);
	}
}

static void
state_lines_have_defaults(void **state)
{
	Read r = read_text("state @a : f32[2]\nstate @b : f32[2] = 0.5\n");
	Buf b = {0};

	assert_string_equal(r.messages, "");
	module_print(&b, r.m);
	assert_string_equal(
	        b.at,
	        "module m {batch=0 stage=typed hash=0000000000000000}\nstate @a : f32[2] = constant(0) {kind=param}\n"
	        "state @b : f32[2] = constant(0.5) {kind=param}\n");
	buf_free(&b);
	done(&r);
}

/* A line inside graph g(%x: f32[4,3], %i: i32[4]), or a whole text if it does not begin with two blanks; what its first
 * message must begin with. The number of messages shows that one mistake makes one. */
static const struct { const char *line, *message;
} refusals[] = {
        {"  %y = rleu %x", "t.ir:2:8: error: there is no operator \"rleu\"; did you mean relu?"},
        {"  %y = relu %xx", "t.ir:2:13: error: no value %xx is defined above; did you mean %x?"},
        {"  %y = relu %y", "t.ir:2:13: error: %y is used in its own definition"},
        {"  %x = relu %x", "t.ir:2:3: error: %x is defined twice"},
        {"  %a, %a = moments %x {axes=[0]}", "t.ir:2:7: error: %a is defined twice"},
        {"  %y = add %x", "t.ir:2:8: error: add takes 2 operands, 1 is given"},
        {"  %y, %z = relu %x", "t.ir:2:12: error: relu has 1 result, 2 are named"},
        {"  relu %x", "t.ir:2:3: error: relu has 1 result, 0 are named"},
        {"  %y = sum %x", "t.ir:2:8: error: sum needs the attribute axes"},
        {"  %y = sum %x {axs=[0]}", "t.ir:2:16: error: sum has no attribute \"axs\"; did you mean axes?"},
        {"  %y = sum %x {zzz=[0]}", "t.ir:2:16: error: sum has no attribute \"zzz\"; it takes axes, keep"},
        {"  %y = relu %x {a=1}", "t.ir:2:17: error: relu has no attribute \"a\"; it takes none"},
        {"  %y = sum %x {axes=[0] axes=[1]}", "t.ir:2:25: error: axes is given twice"},
        {"  %y = sum %x {axes=[0,]}", "t.ir:2:24: error: axes: an integer is expected"},
        {"  %y = sum %x {axes=[0] keep=1}", "t.ir:2:30: error: keep: true or false expected"},
        {"  %y = sum %x {axes=[99999999999999999999]}", "t.ir:2:22: error: axes is out of its range"},
        {"  %y = sum %x {axes=[2]}", "t.ir:2:8: error: sum: axis 2 is out of range for [4,3]"},
        {"  %y = relu %x : f32[4,4]", "t.ir:2:8: error: relu: result 0 is declared f32[4,4], its inputs make f32[4,3]"},
        {"  %y = relu %x : f32[4,3], f32[1]", "t.ir:2:8: error: 2 types for 1 results"},
        {"  %y = add %x, %i", "t.ir:2:8: error: add: operand 1 is f32[4,3], operand 2 is i32[4]: use cast"},
        {"  %y = relu %x : f33[4,3]", "t.ir:2:18: error: there is no type \"f33\"; did you mean f32?"},
        {"  %y = relu %x : f32[4,3]@00", "t.ir:2:27: error: the layout must name each of the 2 axes once"},
        {"  %y = relu %x : f32[4,3]@012", "t.ir:2:27: error: the layout names more than 2 axes"},
        {"  %y = full {value=0} : f32[1,1,1,1,1,1,1,1,1]", "t.ir:2:44: error: more than 8 axes"},
        {"  %y = full {value=0} : f32[2000000,2000000]",
         "t.ir:2:25: error: the tensor has more than 1099511627776 elements"},
        {"  %y = full {value=0} : f32[0]", "t.ir:2:29: error: an extent is out of its range"},
        {"  %y = full {value=0}", "t.ir:2:8: error: full: needs a result type"},
        {"  %y = full {value=1e999} : f32[2]", "t.ir:2:20: error: value: 1e999 is too large for a double"},
        {"  %y = full {value=0x1} : f32[2]", "t.ir:2:20: error: value: \"0x1\" is not a number"},
        {"  %y = full {value=zero} : f32[2]", "t.ir:2:20: error: value: \"zero\" is not a number"},
        {"  %y = relu %x junk", "t.ir:2:16: error: the line should end here"},
        {"  %y = relu %x \"path", "t.ir:2:16: error: the string does not end"},
        {"  %y = relu %x \"a\\n\"", "t.ir:2:18: error: strings know"},
        {"  %y = relu %x !a.net:1", "t.ir:2:24: error: ':' expected after the line"},
        {"  %y = relu %x !a.net:1:70000", "t.ir:2:25: error: the column is out of its range"},
        {"  %y = relu %x at 1, 2", "t.ir:2:8: error: 2 offsets for 1 results"},
        {"  %y = relu %x at -4", "t.ir:2:19: error: an offset is out of its range"},
        {"  %y = relu %x #7", "t.ir:3:2: error: graph g: an op is of group #7, which no group line describes"},
        {"  group #1 b", "t.ir:2:8: error: group lines are numbered in order: #0 is next"},
        {"  store %x {state=w}", "t.ir:2:3: error: store: there is no state line \"w\""},
        {"  %y relu %x", "t.ir:2:6: error: '=' expected after the results' names"},
        {"  @", "t.ir:2:3: error: an operator expected"},
        {"modul m", "t.ir:1:1: error: a line begins with module, setting, state, graph or loop; did you mean module?"},
        {"module m {bach=1}", "t.ir:1:11: error: one of batch, stage, hash, target, arch, arena_bytes, scratch_bytes "
                              "expected; did you mean batch?"},
        {"module m {stage=done}",
         "t.ir:1:17: error: typed, diffed, lowered, fused, scheduled, selected or planned expected"},
        {"setting a = 1\nsetting a = 2", "t.ir:2:9: error: a is set twice"},
        {"setting a = f(1)", "t.ir:1:16: error: '=' expected after the argument's name"},
        {"setting a = [1", "t.ir:1:15: error: ',' expected between values"},
        {"state @a : f32[2]\nstate @a : f32[2]", "t.ir:2:7: error: there are two state lines a"},
        {"state @a : f32[2] = normla(0, 1)",
         "t.ir:1:21: error: there is no initial value \"normla\"; did you mean normal?"},
        {"graph g() {\n}\ngraph g() {\n}", "t.ir:3:7: error: there are two graphs g"},
        {"graph g() {\n", "t.ir:2:1: error: graph g is not closed: '}' expected"},
        {"graph g() -> loss %l {\n}", "t.ir:1:19: error: no value %l is defined in the graph"},
        {"graph g(%x: f32[2], %x: f32[2]) {\n}", "t.ir:1:21: error: %x is defined twice"},
        {"module m {batch=8}\ngraph g(%x: f32[N<=9]) {\n}",
         "t.ir:2:17: error: the extent for a full batch is 9, but a batch of 8 makes 8"},
};

static void
refusals_name_their_place(void **state)
{
	int wrong = 0;

	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
		const char *line = refusals[i].line;
		char text[400];
		Read r;

		snprintf(text, sizeof text, line[0] == ' ' ? "graph g(%%x: f32[4,3], %%i: i32[4]) {\n%s\n}\n" : "%s",
		         line);
		r = read_text(text);
		if (r.m || strncmp(r.messages, refusals[i].message, strlen(refusals[i].message)) != 0 ||
		    r.d->nerror != 1)
			print_error("%s\nwanted %s\ngot    %s", text, refusals[i].message, r.messages), wrong++;
		done(&r);
	}
	assert_int_equal(wrong, 0);
}

static void
several_errors_are_reported(void **state)
{
	Read r = read_text("graph g(%x: f32[4]) -> %z {\n  %a = rleu %x\n  %b = add %a, %a\n  %c = sum %x\n  %z = exp "
	                   "%b\n}\nstat @s : f32[1]\n");

	assert_null(r.m);
	assert_int_equal(r.d->nerror, 3);
	assert_non_null(strstr(r.messages, "t.ir:2:8"));
	assert_non_null(strstr(r.messages, "t.ir:4:8"));
	assert_non_null(strstr(r.messages, "t.ir:7:1"));
	assert_null(strstr(r.messages, "t.ir:3:"));
	done(&r);
}

static void
bytes_beyond_the_end_are_not_read(void **state)
{
	for (size_t n = 0; n < sizeof everything; n += 7) {
		char *exact = malloc(n + 1); /* of just this size, so that a sanitizer sees the end */
		Arena *a = arena_new();
		FILE *nowhere = fopen("/dev/null", "w");
		Diags d;

		memcpy(exact + 1, everything, n);
		diags_init(&d, a, nowhere);
		module_parse(a, &d, "t.ir", exact + 1, n);
		fclose(nowhere);
		free(exact);
		arena_free(a);
	}
}

/* ---------------------------------------------------------------- the verifier */

static void
expect_violation(Module *m, const char *what)
{
	Buf errors = {0};
	bool good = module_verify(m, &errors);

	if (good || !strstr(errors.at, what))
		fail_msg("wanted \"%s\", got %s", what, good ? "no violation" : errors.at);
	buf_free(&errors);
}

static void
good_modules_pass(void **state)
{
	static const char *const texts[] = {
	        "graph g(%x: f32[4,3]) -> %y {\n  %y = relu %x\n}\n",
	        ("state @w : f32[3]\ngraph train(%x: f32[4,3]) -> loss %l {\n  %w = load {state=w}\n  %l = mean %x "
	         "{axes=[0,1]}\n  store %w {state=w}\n}\n"
	         "loop train() {\n  repeat {what=steps} {\n    poll\n  }\n}\n"),
	        "module m {batch=4 stage=scheduled}\ngraph g(%x: f32[4]) -> %y {\n  %a = relu %x #0\n  %b = exp %a "
	        "#0\n  %y = neg %b #1\n}\n",
	};

	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		Read r = read_text(texts[i]);
		Buf errors = {0};

		assert_string_equal(r.messages, "");
		if (!module_verify(r.m, &errors))
			fail_msg("%s", errors.at);
		buf_free(&errors);
		done(&r);
	}
}

static void
violations_of_text_are_named(void **state)
{
	static const char *const cases[][2] = {
	        {"module m {stage=fused}\ngraph g(%x: f32[4]) -> %y {\n  %y = relu %x\n}\n", "no group at stage fused"},
	        {"graph g(%x: f32[4]) -> %y {\n  %y = relu %x #0\n}\n", "a group at stage typed"},
	        {"module m {stage=scheduled}\ngraph g(%x: f32[4]) -> %y {\n  %a = relu %x #0\n  %b = relu %x #1\n  %y "
	         "= relu %x #0\n}\n",
	         "not contiguous"},
	        {"module m {stage=selected}\ngraph g(%x: f32[4]) -> %y {\n  %y = relu %x #0\n}\n", "has no kernel"},
	        {"module m {stage=planned arena_bytes=64}\ngraph g(%x: f32[4] at 0) -> %y {\n group #0 a \"k\"\n %y = "
	         "relu %x #0\n}\n",
	         "%y has no place"},
	        {"module m {stage=planned arena_bytes=64}\ngraph g(%x: f32[4] at 0) -> %y {\n group #0 a \"k\"\n %y = "
	         "relu %x #0 at 60\n}\n",
	         "%y lies outside"},
	        {"module m {stage=planned arena_bytes=64}\nstate @s : f32[4]\n", "state s has no place"},
	        {"module m {stage=diffed}\nstate @s : f32[4]\ngraph train(%x: f32[4]) {\n  update %x {state=s}\n}\n",
	         "update belongs before"},
	        {"graph g(%x: f32[4]) -> loss %x {\n}\n", "needs a floating scalar"},
	        {"graph g(%x: i32[] = seed) {\n}\n", "input x, the seed, is i32[]"},
	        {"graph train(%x: f32[N<=4]) {\n}\n", "follows the batch in a graph where the batch is fixed"},
	        {"state @s : f32[N<=4]\n", "state s follows the batch"},
	        {"graph g() {\n  poll\n}\n", "stands in loops only"},
	        {"loop g(%x: f32[2]) {\n  %y = relu %x\n}\n", "cannot stand in a loop"},
	        {"loop g() {\n  repeat {what=steps}\n}\n", "not closed"},
	        {"loop g() {\n  end\n}\n", "closes no repeat"},
	        {"state @s : f32[4]\ngraph g(%x: f32[4]) {\n  store %x {state=s}\n  store %x {state=s}\n}\n",
	         "two stores' states are called s"},
	        {"state @s : f32[4,4]@10\ngraph g() {\n  %x = load {state=s} : f32[4,4]\n}\n", "it is loaded as"},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Read r = read_text(cases[i][0]);

		if (!r.m)
			fail_msg("%s", r.messages);
		expect_violation(r.m, cases[i][1]);
		done(&r);
	}
}

static void
violations_of_structure_are_named(void **state)
{
	for (int i = 0; i < 12; i++) {
		Read r = read_text(
		        "graph g(%x: f32[4]) -> %c {\n  %a = relu %x\n  %b = sum %a {axes=[0]}\n  %c = neg %b\n}\n");
		Graph *g = r.m->graph.at[0];
		Op *op = g->op.at;
		static const char *const wanted[] = {
		        "operand 1 is no value", "used before it is defined", "does not know its definition",
		        "result 0 is declared",  "two values are called",     "has 1 attributes, needs 2",
		        "there is no group #5",  "is defined twice",          "result c is not defined",
		        "op 1 is of no kind",    "used before it is defined", "there is no stage",
		};

		switch (i) {
		case 0: op[0].in[0].id = 99; break;
		case 1: op[0].in[0] = op[2].out[0]; break;
		case 2: val_info(g, op[1].out[0])->op = 0; break;
		case 3: val_info(g, op[0].out[0])->type.axis[0].n = 5; break;
		case 4: val_info(g, op[1].out[0])->name = "a"; break;
		case 5: op[1].nattr = 1; break;
		case 6: op[1].group = 5; break;
		case 7: op[2].out[0] = op[1].out[0]; break;
		case 8: g->result.at[0].v.id = 77; break;
		case 9: op[1].kind = OP_relu_dy; break;
		case 10: op[0].dead = true; break;
		case 11: r.m->stage = "finished"; break;
		}
		expect_violation(r.m, wanted[i]);
		done(&r);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(everything_reads_back),
	        cmocka_unit_test(short_forms_are_completed),
	        cmocka_unit_test(state_lines_have_defaults),
	        cmocka_unit_test(refusals_name_their_place),
	        cmocka_unit_test(several_errors_are_reported),
	        cmocka_unit_test(bytes_beyond_the_end_are_not_read),
	        cmocka_unit_test(good_modules_pass),
	        cmocka_unit_test(violations_of_text_are_named),
	        cmocka_unit_test(violations_of_structure_are_named),
	};

	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
