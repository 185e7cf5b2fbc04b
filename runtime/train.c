/* train.c: the command train.
 *
 * Two threads: the worker (the pool's first thread) runs the loop, saves and evaluates; the process's main thread is
 * the monitor: it waits for signals, drains the telemetry, draws the bar. Everything is read and checked before the
 * first step. A signal sets stop_at to 0: the loop ends within one step, the state is saved, the exit status is 128 +
 * the signal's number. */
#define _GNU_SOURCE
#include "comm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- plan: T, W, where to start */

static bool
train_same(RtHost *h, const char *what, int64_t was, int64_t is)
{
	if (was == is || h->opt.replan)
		return true;
	return rt_fail(&h->error,
	               "%s: the checkpoint has %s %lld, this run %lld; with --replan it goes on with the new one, and "
	               "is then no longer the same bits",
	               h->opt.resume, what, (long long)was, (long long)is);
}

/* T of this run if nothing is resumed. */
static bool
train_total(RtHost *h, int64_t per, int64_t *total)
{
	int64_t epochs = h->opt.epochs >= 0 ? h->opt.epochs : h->program.epochs;

	if (h->opt.steps >= 0)
		*total = h->opt.steps;
	else if (__builtin_mul_overflow(epochs, per, total) || *total > RT_MAX_STEPS)
		return rt_fail(&h->error, "%lld epochs of %lld steps are more than %lld steps", (long long)epochs,
		               (long long)per, (long long)RT_MAX_STEPS);
	return true;
}

static bool
train_resume(RtHost *h, int64_t per)
{
	RtResume r = {0};

	if (!rt_checkpoint_resume(h, h->opt.resume, &r))
		return false;
	if (r.total == 0)                        /* an initial state, of --steps 0: nothing was planned yet */
		r.total = h->total;
	if (h->opt.epochs < 0 && h->opt.steps < 0 && !h->opt.replan)
		h->total = r.total;                  /* nothing asked for: as the run was planned */
	if (!h->opt.has_seed)
		h->run.seed = r.seed;
	if (!train_same(h, "a length in updates of T =", r.total, h->total) ||
	    !train_same(h, "batch", r.batch, h->program.batch * h->program.shards) ||
	    !train_same(h, "shards =", r.shards, h->program.shards) || !train_same(h, "seed", r.seed, h->run.seed) ||
	    (r.examples && !train_same(h, "a data set of", r.examples, h->train.examples)))
		return false;
	if (r.step > h->total)
		return rt_fail(&h->error, "%s is at step %lld, beyond this run's last step %lld", h->opt.resume,
		               (long long)r.step, (long long)h->total);
	h->run.step = r.step;
	/* an epoch begins; a run that is over saves what it had */
	if (r.step < h->total && (per < 1 || r.step % per == 0)) {
		memset(h->sum, 0, sizeof h->sum);
		h->weight = 0;
	}
	return true;
}

static bool
train_load(RtHost *h)
{
	const RtProgram *p = &h->program;
	int64_t need = p->batch * p->accumulate;
	RtError why = {0};

	if (h->opt.steps == 0)                   /* the initial state needs no data */
		return true;
	if (!rt_data_load(p, &h->opt, true, &h->train, &h->error))
		return false;
	h->have_train = true;
	if (h->train.examples < need)
		return rt_fail(&h->error, "%lld training examples are fewer than %s of %lld",
		               (long long)h->train.examples,
		               p->accumulate > p->shards ? "the batches of one update" : "one batch", (long long)need);
	if (h->opt.no_eval || !rt_evaluates(p) ||
	    !(p->reader.ntest || h->opt.synthetic || strcmp(p->reader.kind, "synthetic") == 0))
		return true;
	if (!rt_data_load(p, &h->opt, false, &h->test, &h->error))
		return rt_context(&h->error, "the evaluation after each epoch (--no-eval leaves it out)");
	h->have_test = true;
	if (!rt_batches_fit(p, &p->graph[RT_G_EVAL], h->test.examples, "test examples", &why)) {
		fprintf(stderr, "warning: no evaluation after the epochs: %s\n", why.text);
		h->have_test = false;
	} else if (!rt_evaluation_fits(p, h->test.examples, &why)) {
		fprintf(stderr, "warning: the evaluation after the epochs leaves it out: %s\n", why.text);
	}
	return true;
}

static void
train_plan_stops(RtHost *h)
{
	h->stop_step = h->opt.stop >= 0 && h->opt.stop < h->total ? h->opt.stop : INT64_MAX;
	/* who has slots that rank 0 saves stops with it, and so do devices, which all run the same steps */
	bool saves = rt_cuts_cut(h) || (h->ranks > 1 && h->object->device) ? h->cuts.saves : !h->opt.no_save;

	h->next_save = h->opt.every > 0 && saves ? h->run.step + h->opt.every - h->run.step % h->opt.every
	                                         : INT64_MAX;
	rt_set_stop(h);
}

static int64_t
train_per_epoch(const RtHost *h)
{
	return h->train.examples / h->program.batch / h->program.accumulate;
}

/* Of some examples of a set: do all ranks read the same files? */
static uint64_t
train_data_hash(const RtHost *h, const RtData *d, uint64_t hash)
{
	RtError e;

	for (int64_t i = 0; i < 8 && d->examples > 0 && !d->readers; i++)
		for (int k = 0; k < h->program.ninput; k++) {
			uint8_t *room = d->bytes[k] ? rt_alloc((size_t)d->bytes[k]) : NULL;

			if (room && rt_data_copy(d, k, (d->examples - 1) * i / 7, 1, room, &e))
				hash = rt_hash(hash, room, (size_t)d->bytes[k]);
			free(room);
		}
	return hash;
}

static bool
train_agree(RtHost *h, bool good)
{
	char *text = good ? rt_printf("training-examples %lld\ntest-examples %lld\ndata %016llx\n",
	                              (long long)h->train.examples, (long long)(h->have_test ? h->test.examples : 0),
	                              (unsigned long long)train_data_hash(h, &h->test,
	                                                                  train_data_hash(h, &h->train, RT_HASH_START)))
	                  : rt_printf("-");

	good = h->comm->agree(h, good, text);
	free(text);
	return good;
}

/* What a rank has for itself, before the first word of the others. */
static bool
train_open(RtHost *h)
{
	if (!h->program.graph[RT_G_TRAIN].present)
		return rt_fail(&h->error, "the model has no loss: there is nothing to train");
	if (!rt_best_prepare(h) || !rt_settings_prepare(h) || !rt_watch_prepare(h) ||
	    !rt_checkpoint_try(h) || !train_load(h) ||
	    !rt_best_begin(h) || !rt_host_memory(h, h->train.examples) ||
	    !train_total(h, train_per_epoch(h), &h->total))
		return false;
	if (h->total > 0 && !h->object->device)   /* a step writes nearly all of the arena */
		rt_host_touch(h);
	return rt_host_init_state(h);
}

/* --continue: the file of --save, if it is there, is resumed from. Rank 0 looks for all; what the reader draws
 * belongs to the seed of the run that is resumed. */
static void
train_begin(RtHost *h)
{
	typedef struct Begin { int64_t resumes, has_seed, seed, saves, named; } Begin;
	Begin at = {0}, *all = &at;
	size_t n = sizeof at;

	if (h->rank == 0 && h->opt.goes_on) {
		char *path = h->opt.save ? rt_printf("%s", h->opt.save) : rt_printf("%s.safetensors", h->opt.program);

		at.resumes = access(path, F_OK) == 0 || errno != ENOENT;
		if (at.resumes)
			h->opt.resume = path;
		if (!h->opt.quiet)
			fprintf(stderr, at.resumes ? "note: goes on from %s\n" : "note: starts: %s is not there\n",
			        path);
	}
	if (h->rank == 0 && h->opt.resume && !h->opt.has_seed)
		rt_checkpoint_seed(h, h->opt.resume);
	if (h->ranks > 1) {
		at.has_seed = h->opt.has_seed;
		at.seed = h->opt.seed;
		at.saves = !h->opt.no_save;
		at.named = h->opt.save != NULL;
		h->comm->share(h, (void **)&all, &n);
		h->opt.has_seed = all->has_seed;
		h->opt.seed = all->seed;
		h->cuts.saves = all->saves;
		h->cuts.named = all->named;
		if (all->resumes && !h->opt.resume)
			h->opt.resume = "the file of --save";
	}
	if (h->opt.goes_on && h->opt.resume)     /* --weights was where the run started */
		h->opt.weights = NULL;
}

static bool
train_prepare(RtHost *h)
{
	const RtRate *r = &h->program.rate;
	int64_t per;
	bool good;

	train_begin(h);
	good = train_open(h);
	if (h->ranks > 1)
		good = train_agree(h, good);
	if (!good || !rt_sums_meet(h))
		return false;
	per = train_per_epoch(h);
	if (h->opt.weights && !rt_checkpoint_weights(h, h->opt.weights, h->opt.partial))
		return false;
	if (h->opt.resume && !train_resume(h, per))
		return false;
	if (h->total > h->run.step && !h->have_train)
		return rt_fail(&h->error, "--steps 0 reads no data, but the checkpoint's run has %lld steps",
		               (long long)h->total);
	rt_settings_apply(h);
	h->warmup = r->warmup_steps > 0 ? (int64_t)fmin(r->warmup_steps, (double)RT_MAX_STEPS)
		: (int64_t)fmin(floor(r->warmup_epochs * (double)per + 0.5), (double)RT_MAX_STEPS);
	h->first_step = h->run.step;
	h->last_step = -1;
	return rt_log_open(h, h->run.step, per);
}

/* ---- one epoch */

static void
train_begin_epoch(RtHost *h, bool fresh)
{
	pthread_mutex_lock(&h->lock);
	if (fresh) {
		memset(h->sum, 0, sizeof h->sum);
		h->weight = 0;
	}
	h->epoch_start = rt_now();
	h->epoch_from = h->run.step;
	pthread_mutex_unlock(&h->lock);
}

static void
train_means(RtHost *h, double mean[RT_MAX_RESULTS])
{
	pthread_mutex_lock(&h->lock);
	for (int i = 0; i < RT_MAX_RESULTS; i++)
		mean[i] = h->weight > 0 ? h->sum[i] / h->weight : 0;
	pthread_mutex_unlock(&h->lock);
}

/* What there is to go on from after an error. */
static char *
train_last(const RtHost *h)
{
	if (h->save.step >= 0)
		return rt_printf("the last good checkpoint is %s, of step %lld", h->save.path, (long long)h->save.step);
	return rt_printf("%s%s", h->opt.resume ? "the last good checkpoint is " : "nothing was saved",
	                 h->opt.resume ? h->opt.resume : "");
}

static void
train_not_finite(RtHost *h)
{
	char *last = train_last(h), *first = rt_not_finite(h);

	rt_fail(&h->error, "the loss of step %lld is %s%s%s; %s; --allow-nan would go on", (long long)h->run.step,
	        isnan(h->last_loss) ? "nan"
	        : h->last_loss > 0  ? "inf"
	                            : "-inf",
	        first ? ": " : "", first ? first : "", last);
	free(first);
	free(last);
}

/* The device failed, and said why. */
static void
train_lost(RtHost *h)
{
	char *last = train_last(h), *why = rt_printf("%s", h->error.text);

	rt_fail(&h->error, "in the steps from %lld on: %s; %s", (long long)h->run.step, why, last);
	free(last);
	free(why);
}

/* Evaluates, says so and judges. *mean: the values, *done: there are any (a signal may come between). False after
 * rt_fail. The sums of the epoch and the place in the run stay. */
static bool
train_evaluate(RtHost *h, int64_t epoch, double mean[RT_MAX_RESULTS], bool *done, bool *best)
{
	int64_t step = h->run.step, per = h->run.steps_per_epoch, examples;
	double sum[RT_MAX_RESULTS], weight = h->weight;

	*done = *best = false;
	if (!h->have_test || rt_stops(h))
		return true;
	memcpy(sum, h->sum, sizeof sum);
	h->error.text[0] = 0;
	rt_cuts_late(h);
	*done = rt_evaluate(h, mean, &examples);
	h->run.step = step;
	h->run.epoch = epoch;
	h->run.steps_per_epoch = per;
	pthread_mutex_lock(&h->lock);
	memcpy(h->sum, sum, sizeof sum);
	h->weight = weight;
	pthread_mutex_unlock(&h->lock);
	if (!*done && h->error.text[0])
		return rt_context(&h->error, "evaluation after epoch %lld", (long long)epoch + 1);
	if (*done) {
		*best = h->best.on && rt_best_judge(h, mean, epoch);
		rt_eval_report(h, mean, *best ? "best" : "");
	}
	rt_host_use(h, RT_M_TRAIN, &h->train, h->program.shuffle);
	return true;
}

/* A failure ends the run only where nothing comes after it. */
static bool
train_checkpoint(RtHost *h, bool best)
{
	if ((!best || rt_checkpoint_save_best(h, h->run.step)) && rt_checkpoint_save(h, h->run.step))
		return true;
	if (h->run.step == h->total)
		return false;
	rt_progress_clear(h);
	fprintf(stderr, "%s: warning: %s; training goes on\n", h->opt.program, h->error.text);
	return true;
}

/* Report, checkpoint, evaluation. Where evaluations are judged the checkpoint comes after it, and says what was best:
 * first the best one's file, so that no checkpoint names a best that is not there. False after rt_fail. */
static bool
train_end_epoch(RtHost *h, int64_t epoch)
{
	double mean[RT_MAX_RESULTS], eval[RT_MAX_RESULTS], seconds = rt_now() - h->epoch_start, speed;
	bool evaluated, best;

	train_means(h, mean);
	speed = seconds > 0
	                ? (double)((h->run.step - h->epoch_from) * h->program.batch * h->program.accumulate) / seconds
	                : 0;
	rt_epoch_report(h, epoch, mean, seconds, speed);
	if ((!h->best.on && !train_checkpoint(h, false)) || !train_evaluate(h, epoch, eval, &evaluated, &best)
	    || (h->best.on && !train_checkpoint(h, best)))
		return false;
	rt_epoch_log(h, epoch, mean, evaluated ? eval : NULL, best, seconds, speed);
	rt_exchange_warn(h, epoch, seconds);
	return true;
}

/* A run resumed at the end of an epoch whose evaluation was not judged: it is made now. False after rt_fail. */
static bool
train_judge_first(RtHost *h)
{
	int64_t per = h->run.steps_per_epoch;
	double eval[RT_MAX_RESULTS];
	bool done, best;

	if (!h->best.on || !h->opt.resume || h->run.step == 0 || per < 1 || h->best.judged == h->run.step
	    || (h->run.step % per && h->run.step != h->total))
		return true;
	return train_evaluate(h, (h->run.step - 1) / per, eval, &done, &best) && (!best || train_checkpoint(h, true));
}

/* Runs to the end of the epoch, the run or the sink's piece. An exit status, or -1 to go on. */
static int
train_piece(RtHost *h, int64_t sink)
{
	RtRun *run = &h->run;
	int64_t per = run->steps_per_epoch, step = run->step, epoch = step / per, status;
	bool watched;

	run->epoch = epoch;
	run->until = (epoch + 1) * per < h->total ? (epoch + 1) * per : h->total;
	/* a device keeps several pieces under way */
	if (sink > 0 && !h->object->device && run->until - run->step > sink)
		run->until = run->step + sink;
	watched = rt_watch_due(h, &run->until);
	if (watched)
		rt_watch_begin(h);
	train_plan_stops(h);
	status = rt_host_enter(h, h->object->train, &h->program.train, sink == 0 || watched);
	if (watched && (status == RT_OK || status == RT_STOPPED))
		rt_watch_end(h, step);
	h->watching = false;
	if (status == RT_FAULT)
		status = rt_sums_fault(h);
	rt_drain(h);
	rt_log_flush(h);
	if (status == RT_FAULT) {
		rt_host_fault(h);
		return rt_die(h);
	}
	if (status == RT_NOT_FINITE) {
		train_not_finite(h);
		h->agreed = true;                /* all ranks have the loss */
		return rt_die(h);
	}
	if (status == RT_ERROR) {
		train_lost(h);
		return rt_die(h);
	}
	if (status != RT_OK && status != RT_STOPPED) {
		rt_fail(&h->error, "the program returned status %lld at step %lld", (long long)status,
		        (long long)run->step);
		return rt_die(h);
	}
	if ((run->step % per == 0 || run->step == h->total) && !train_end_epoch(h, epoch))
		return rt_die(h);
	return -1;
}

/* ---- the run */

/* Saves the state at the end of the run. A run without a step has nothing of its own to save, and may have been an
 * oversight: it replaces no file that was not named. */
static bool
train_save(RtHost *h)
{
	if (h->opt.save || h->cuts.named || h->run.step != h->first_step)
		return rt_checkpoint_save(h, h->run.step);
	if (!h->opt.no_save && !h->opt.quiet)
		fprintf(stderr, "note: no step was made: nothing is saved; "
		        "--save FILE would write the state as it is\n");
	return true;
}

/* What was best, where it stands, and that it ended the run. */
static void
train_best_report(const RtHost *h)
{
	const RtBest *b = &h->best;

	if (!b->on || h->opt.quiet)
		return;
	if (rt_best_over(h))
		fprintf(stderr, "%s: stopped after step %lld of %lld: %s was no better in %lld evaluations\n",
		        h->opt.program, (long long)h->run.step, (long long)h->total, b->name, (long long)b->worse);
	if (b->any)
		fprintf(stderr, "%s: the best %s was %.4f, after epoch %lld%s%s\n", h->opt.program, b->name, b->value,
		        (long long)b->epoch + 1, b->keeps ? ": " : "", b->keeps ? b->save.path : "");
}

static int
train_run(RtHost *h)
{
	int64_t sink = rt_sink(h);
	bool fresh = false, first = true;

	if (h->have_train)
		rt_host_use(h, RT_M_TRAIN, &h->train, h->program.shuffle);
	if (!train_judge_first(h))
		return rt_die(h);
	while (h->run.step < h->total && !rt_best_over(h)) {
		int status;

		if (rt_stops(h) || (h->opt.stop >= 0 && h->run.step >= h->opt.stop))
			break;
		fresh = !first && h->run.step % h->run.steps_per_epoch == 0;
		if (fresh || first)
			train_begin_epoch(h, fresh);
		first = false;
		status = train_piece(h, sink);
		if (status >= 0)
			return status;
	}
	rt_progress_end(h);
	if (!train_save(h))
		return rt_die(h);
	train_best_report(h);
	if (rt_stops(h)) {
		bool saved = h->save.step == h->run.step;

		fprintf(stderr, "%s: stopped after step %lld of %lld%s%s\n", h->opt.program, (long long)h->run.step,
		        (long long)h->total, saved ? ", saved in " : "", saved ? h->save.path : "");
		return 128 + rt_stops(h);
	}
	return 0;
}

typedef struct Worker { RtHost *h; pthread_t monitor; int status; bool done; } Worker;

static void *
train_worker(void *arg)
{
	Worker *w = arg;

	w->status = train_run(w->h);
	__atomic_store_n(&w->done, true, __ATOMIC_RELEASE);
	pthread_kill(w->monitor, SIGUSR1);
	return NULL;
}

static void
train_monitor(RtHost *h, Worker *w, const sigset_t *set)
{
	while (!__atomic_load_n(&w->done, __ATOMIC_ACQUIRE)) {
		struct timespec wait = {.tv_nsec = 100000000};
		int number = sigtimedwait(set, NULL, &wait);

		if (number == SIGUSR1 && h->ranks > 1 && !__atomic_load_n(&w->done, __ATOMIC_ACQUIRE))
			number = SIGINT;             /* what launchers pass on, and do not kill after */
		if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
			if (__atomic_load_n(&h->signal, __ATOMIC_SEQ_CST))
				_exit(128 + number);         /* asked twice: at once; the last whole checkpoint stays */
			__atomic_store_n(&h->signal, number, __ATOMIC_SEQ_CST);
			__atomic_store_n(&h->run.stop_at, 0, __ATOMIC_SEQ_CST);
		}
		rt_drain(h);
		rt_log_flush(h);
		rt_progress_draw(h);
	}
}

static int
train_all(RtHost *h)
{
	Worker w = {.h = h, .monitor = pthread_self()};
	pthread_attr_t attr;
	pthread_t id;
	sigset_t set;
	FILE *file;
	RtUsage *usage;
	int bad;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	if (!rt_usage_try(h->rank ? NULL : h->opt.usage_file, &file, &h->error) || !train_prepare(h))
		return rt_die(h);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, (size_t)16 << 20);
	bad = pthread_create(&id, &attr, train_worker, &w);
	pthread_attr_destroy(&attr);
	if (bad) {
		rt_fail(&h->error, "the training thread could not be started: %s", strerror(bad));
		return rt_die(h);
	}
	usage = file ? rt_usage_begin(h, file) : NULL;
	train_monitor(h, &w, &set);
	pthread_join(id, NULL);
	if (usage)
		rt_usage_end(usage);
	rt_threads_free(h->threads);
	if (h->log) {
		rt_log_flush(h);
		fclose(h->log);
	}
	if (h->log_error && w.status == 0) {
		rt_fail(&h->error, "--log %s: %s: lines are missing", h->opt.log, strerror(h->log_error));
		return rt_die(h);
	}
	return w.status;
}

int
rt_train(RtHost *h)
{
	int status;

	/* whoever reads its lines or its log may leave: write() then fails, and the state is saved */
	signal(SIGPIPE, SIG_IGN);
	status = train_all(h);
	rt_checkpoint_end(h);
	return status;
}
