/* data_images.c: images and their labels: images(train, test, size, resize, crop, ratio, flip).
 *
 * In: a folder with a folder for each class; a text of lines `path label`; or tar shards, WebDataset's (KEY.jpg and
 * KEY.cls) or with a folder for each class. {000..099} in a name counts. Classes are numbered in byte order of their
 * names over all that is named, images of a folder stand in byte order of class/name, those of lists and shards in
 * their order.
 * Out: image u8[N, C, rows, columns] and label. Crops are drawn by the example's number and the epoch: the same whoever
 * makes them.
 * Refuses: no images, labels that the model does not have, headers of no image (of up to 10,000 files before the
 * first step); what is broken farther on is an error when its batch is asked for. */
#define _GNU_SOURCE
#include "bitmap.h"
#include "philox.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { IMAGES_CHECK = 10000, IMAGES_BRACES = 100000 };

/* name: a path, or that within a shard; class: where its name decides, then label does. */
typedef struct Image { char *name; const char *class; int64_t label; const RtFile *shard; size_t offset, bytes; } Image;
typedef struct Images {
	Image *at; int64_t n, room;
	char **class; int64_t nclass, class_room; /* names, each once per folder or shard */
	int image, label;            /* inputs; -1 */
	int channels, rows, columns, resize;
	bool crops, flip;
	double least, most, ratio[2];
} Images;

static bool
images_add(Images *v, const Image *x, RtError *e)
{
	if (v->n == v->room) {
		Image *more = realloc(v->at, sizeof *more * (size_t)(v->room = v->room ? 2 * v->room : 256));

		if (!more)
			return rt_fail(e, "out of memory for the names of %lld images", (long long)v->n);
		v->at = more;
	}
	v->at[v->n++] = *x;
	return true;
}

/* The name of a class, kept; the last one is looked at first, as images of a class stand together. */
static const char *
images_class(Images *v, const char *name, size_t n)
{
	for (int64_t i = v->nclass; i-- > 0;)
		if (strncmp(v->class[i], name, n) == 0 && !v->class[i][n])
			return v->class[i];
	if (v->nclass == v->class_room) {
		v->class_room = v->class_room ? 2 * v->class_room : 64;
		v->class = realloc(v->class, sizeof *v->class * (size_t)v->class_room);
		if (!v->class)
			exit(1);
	}
	return v->class[v->nclass++] = rt_printf("%.*s", (int)n, name);
}

static bool
images_ending(const char *name)
{
	static const char *const endings[] = {".jpg", ".jpeg", ".png"};
	const char *dot = strrchr(name, '.');

	for (int i = 0; dot && i < RT_COUNT(endings); i++)
		if (strcasecmp(dot, endings[i]) == 0)
			return true;
	return false;
}

/* ---- folders */

static bool
folder_class(Images *v, const char *folder, const char *class, RtError *e)
{
	char *path = rt_printf("%s/%s", folder, class);
	DIR *d = opendir(path);
	Image x = {.class = images_class(v, class, strlen(class))};
	bool good = true;

	if (!d && errno != ENOTDIR)
		good = rt_fail(e, "%s: %s", path, strerror(errno));
	for (struct dirent *f; good && d && (f = readdir(d));)
		if (images_ending(f->d_name)) {
			x.name = rt_printf("%s/%s", path, f->d_name);
			good = images_add(v, &x, e);
		}
	if (d)
		closedir(d);
	free(path);
	return good;
}

static bool
images_folder(Images *v, const char *folder, RtError *e)
{
	DIR *d = opendir(folder);
	int64_t before = v->n;
	bool good = d || rt_fail(e, "%s: %s", folder, strerror(errno));

	for (struct dirent *f; good && (f = readdir(d));)
		if (f->d_name[0] != '.' && f->d_type != DT_REG)
			good = folder_class(v, folder, f->d_name, e);
	if (d)
		closedir(d);
	return good &&
	       (v->n > before ||
	        rt_fail(e, "%s: no folder in it holds .jpg, .jpeg or .png files: a folder for each class is needed",
	                folder));
}

/* Of a folder's images: class/name. */
static int
images_order(const void *a, const void *b)
{
	const Image *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* ---- lists */

static bool
images_list(Images *v, const char *path, const RtFile *f, RtError *e)
{
	const char *at = (const char *)f->at, *end = at + f->n;
	int folder = (int)(rt_basename(path) - path);

	for (int64_t line = 1; at < end; line++) {
		const char *stop = memchr(at, '\n', (size_t)(end - at)), *last = stop ? stop : end, *label;
		char *rest, text[24];
		Image x = {0};

		stop = last;
		while (last > at && (last[-1] == ' ' || last[-1] == '\r' || last[-1] == '\t'))
			last--;
		for (label = last; label > at && label[-1] != ' ' && label[-1] != '\t';)
			label--;
		if (last > at) {
			const char *name = label;

			while (name > at && (name[-1] == ' ' || name[-1] == '\t'))
				name--;
			snprintf(text, sizeof text, "%.*s", (int)(last - label), label);
			x.label = strtoll(text, &rest, 10);
			if (name == at || *rest || rest == text)
				return rt_fail(e, "%s:%lld: `path label` is needed, as in cats/1.jpg 0", path,
				               (long long)line);
			x.name = *at == '/' ? rt_printf("%.*s", (int)(name - at), at)
			                    : rt_printf("%.*s%.*s", folder, path, (int)(name - at), at);
			if (!images_add(v, &x, e))
				return false;
		}
		at = stop + 1;
	}
	return true;
}

/* ---- tar shards */

typedef struct Tar { Images *v; const RtFile *f; Image now; bool labelled; char *key; } Tar;

/* A number of a header: octal text, or base 256 behind a first bit. */
static uint64_t
tar_number(const uint8_t *at, int n)
{
	uint64_t x = 0;

	if (at[0] & 0x80) {
		for (int i = n - 8; i < n; i++)
			x = x << 8 | at[i];
		return x;
	}
	for (int i = 0; i < n && at[i]; i++)
		if (at[i] >= '0' && at[i] <= '7')
			x = x * 8 + (uint64_t)(at[i] - '0');
	return x;
}

/* What has been collected of a key is an image, or nothing. */
static bool
tar_flush(Tar *t, RtError *e)
{
	const char *slash = t->now.name ? strrchr(t->now.name, '/') : NULL, *class = slash;

	if (t->now.name && !t->labelled) {
		if (!slash || slash == t->now.name)
			return rt_fail(e, "%s: %s has no .cls beside it and stands in no folder of a class", t->f->path,
			               t->now.name);
		while (class > t->now.name && class[-1] != '/')
			class--;
		t->now.class = images_class(t->v, class, (size_t)(slash - class));
	}
	if (t->now.name && !images_add(t->v, &t->now, e))
		return false;
	free(t->key);
	t->key = NULL;
	t->labelled = false;
	t->now = (Image){0};
	return true;
}

/* One member of a shard. */
static bool
tar_member(Tar *t, const char *name, size_t offset, size_t bytes, RtError *e)
{
	const char *dot = strchr(rt_basename(name), '.');
	int key = dot ? (int)(dot - name) : (int)strlen(name);

	if (!dot || dot == rt_basename(name))
		return true;
	if (!t->key || strncmp(t->key, name, (size_t)key) != 0 || t->key[key]) {
		if (!tar_flush(t, e))
			return false;
		t->key = rt_printf("%.*s", key, name);
	}
	if (images_ending(name) && !t->now.name) {
		t->now.name = rt_printf("%s", name);
		t->now.shard = t->f;
		t->now.offset = offset;
		t->now.bytes = bytes;
	} else if (strcmp(dot, ".cls") == 0) {
		char text[24], *rest;

		snprintf(text, sizeof text, "%.*s", (int)(bytes < 20 ? bytes : 20), (const char *)t->f->at + offset);
		t->now.label = strtoll(text, &rest, 10);
		if (rest == text || strspn(rest, " \r\n\t") != strlen(rest))
			return rt_fail(e, "%s: %s holds no number of a class", t->f->path, name);
		t->labelled = true;
	}
	return true;
}

/* The path that a pax header gives, or NULL. Records are `LENGTH path=VALUE\n`. */
static char *
tar_pax(const char *at, size_t n)
{
	for (size_t used = 0; used < n;) {
		size_t length = strtoul(at + used, NULL, 10);
		const char *blank = memchr(at + used, ' ', n - used);

		if (!blank || length == 0 || length > n - used || (size_t)(blank - at - (ptrdiff_t)used) >= length)
			return NULL;
		if (used + length - (size_t)(blank + 1 - at) > 6 && strncmp(blank + 1, "path=", 5) == 0)
			return rt_printf("%.*s", (int)(used + length - (size_t)(blank + 6 - at) - 1), blank + 6);
		used += length;
	}
	return NULL;
}

static bool
images_tar(Images *v, const RtFile *f, RtError *e)
{
	Tar t = {.v = v, .f = f};
	char *named = NULL;
	bool good = true;

	for (size_t at = 0; good && at < f->n && f->at[at];) {
		const uint8_t *h = f->at + at;

		if (f->n - at < 512) {
			good = rt_fail(e, "%s: truncated: the header at byte %zu", f->path, at);
			break;
		}
		uint64_t bytes = tar_number(h + 124, 12);
		bool prefix = memcmp(h + 257, "ustar", 5) == 0 && h[345] && h[156] != 'L' && h[156] != 'x';

		if (memcmp(h + 257, "ustar", 5) != 0 || bytes > f->n - at - 512) {
			good = rt_fail(e, "%s: %s at byte %zu", f->path,
			               memcmp(h + 257, "ustar", 5)
			                       ? "no header of a tar file"
			                       : "truncated: a member's end is missing, which begins",
			               at);
			break;
		}
		if (h[156] == 'L' || h[156] == 'x') {
			free(named);
			named = h[156] == 'L' ? rt_printf("%.*s", (int)bytes, (const char *)h + 512)
			                      : tar_pax((const char *)h + 512, (size_t)bytes);
		} else {
			char *name = named    ? named
			             : prefix ? rt_printf("%.155s/%.100s", (const char *)h + 345, (const char *)h)
			                      : rt_printf("%.100s", (const char *)h);

			if (h[156] == '0' || h[156] == 0)
				good = tar_member(&t, name, at + 512, (size_t)bytes, e);
			free(name);
			named = NULL;
		}
		at += 512 + (size_t)((bytes + 511) / 512 * 512);
	}
	free(named);
	good = good && tar_flush(&t, e);
	free(t.key);
	rt_file_forget(f, 0, f->n);
	return good;
}

/* ---- what is named */

static bool
images_path(RtData *d, Images *v, const char *path, RtError *e)
{
	struct stat st;
	int64_t before = v->n;
	RtFile *f;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		if (!images_folder(v, path, e))
			return false;
		qsort(v->at + before, (size_t)(v->n - before), sizeof *v->at, images_order);
		return true;
	}
	f = rt_data_file(d, path, e);
	if (!f)
		return false;
	if (!f->n)
		return rt_fail(e, "%s: is empty", path);
	return f->n >= 512 && memcmp(f->at + 257, "ustar", 5) == 0 ? images_tar(v, f, e) : images_list(v, path, f, e);
}

/* Names with {000..099} in them, one after the other; others as they are. */
static bool
images_pattern(RtData *d, Images *v, const char *folder, const char *pattern, RtError *e)
{
	const char *open = strchr(pattern, '{'), *dots = open ? strstr(open, "..") : NULL,
	           *close = dots ? strchr(dots, '}') : NULL;
	RtPaths paths = {0};
	bool good = true;

	if (close && strspn(open + 1, "0123456789") == (size_t)(dots - open - 1) &&
	    strspn(dots + 2, "0123456789") == (size_t)(close - dots - 2)) {
		long from = strtol(open + 1, NULL, 10), to = strtol(dots + 2, NULL, 10);

		if (from > to || to - from > IMAGES_BRACES)
			return rt_fail(e, "%s: %ld..%ld names no files, or more than %d", pattern, from, to,
			               IMAGES_BRACES);
		for (long i = from; good && i <= to; i++) {
			char *one = rt_printf("%.*s%0*ld%s", (int)(open - pattern), pattern, (int)(dots - open - 1), i,
			                      close + 1);

			good = images_pattern(d, v, folder, one, e);
			free(one);
		}
		return good;
	}
	good = rt_paths_find(&paths, folder, pattern, e);
	for (int j = 0; good && j < paths.n; j++)
		good = images_path(d, v, paths.at[j], e);
	rt_paths_free(&paths);
	return good;
}

static int
images_by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Numbers of the classes, and whether the model has them. */
static bool
images_labels(const RtData *d, Images *v, RtError *e)
{
	const RtInput *in = v->label >= 0 ? &d->p->input[v->label] : NULL;

	if (v->nclass)
		qsort(v->class, (size_t)v->nclass, sizeof *v->class, images_by_name);
	for (int64_t i = 0; i < v->n; i++) {
		Image *x = &v->at[i];

		for (int64_t low = 0, high = v->nclass; x->class && low < high;) {
			int64_t mid = (low + high) / 2;
			int order = strcmp(v->class[mid], x->class);

			if (order == 0)
				x->label = low = high = mid;
			else if (order < 0)
				low = mid + 1;
			else
				high = mid;
		}
		if (in && in->limit > 0 && (x->label < 0 || x->label >= in->limit) &&
		    !(in->has_ignore && x->label == in->ignore))
			return rt_fail(e, "%s: class %lld%s%s%s is out of range 0..%lld, which input %s has", x->name,
			               (long long)x->label, x->class ? " (" : "", x->class ? x->class : "",
			               x->class ? ")" : "", (long long)in->limit - 1, in->t.name);
	}
	return true;
}

/* ---- headers */

static bool
images_head(const Image *x, RtScratch *s, RtError *e)
{
	int width, height;

	if (!x->shard)
		return rt_bitmap_head(x->name, s, e) || rt_context(e, "%s", x->name);
	return rt_bitmap_size(x->shard->at + x->offset, x->bytes, &width, &height, e) ||
	       rt_context(e, "%s: %s", x->shard->path, x->name);
}

/* ---- one example */

static double
images_draw(const RtData *d, int64_t epoch, int64_t example, int j)
{
	return philox_uniform((uint64_t)d->seed, philox_stream("images"), (uint64_t)epoch,
	                      64 * (uint64_t)example + (uint64_t)j);
}

/* The part of the image that training sees, by area and aspect (Szegedy et al. 2015); false after ten tries. */
static bool
images_crop(const RtData *d, const Images *v, int64_t epoch, int64_t example, const RtBitmap *p, RtBox *box)
{
	double low = log(v->ratio[0]), high = log(v->ratio[1]);

	for (int i = 0; i < 10; i++) {
		double area = (double)p->height * p->width *
		              (v->least + (v->most - v->least) * images_draw(d, epoch, example, 4 * i));
		double aspect = exp(low + (high - low) * images_draw(d, epoch, example, 4 * i + 1));
		double w = nearbyint(sqrt(area * aspect)), h = nearbyint(sqrt(area / aspect));

		if (!(w > 0 && w <= p->width && h > 0 && h <= p->height))
			continue;
		*box = (RtBox){.width = (int)w, .height = (int)h};
		box->y = (int)floor(images_draw(d, epoch, example, 4 * i + 2) * (p->height - box->height + 1));
		box->x = (int)floor(images_draw(d, epoch, example, 4 * i + 3) * (p->width - box->width + 1));
		return true;
	}
	return false;
}

/* The whole image's extents when it is scaled for evaluation. */
static void
images_whole(const Images *v, const RtBitmap *p, int *width, int *height)
{
	int64_t w = p->width, h = p->height;
	/* rows need the larger factor */
	bool wide = w > h, by_rows = (double)v->rows * (double)w >= (double)v->columns * (double)h;

	if (v->resize) {
		*height = wide ? v->resize : (int)(h * v->resize / w);
		*width = wide ? (int)(w * v->resize / h) : v->resize;
		return;
	}
	*height = by_rows ? v->rows : (int)(h * v->columns / w);
	*width = by_rows ? (int)(w * v->rows / h) : v->columns;
	*height = *height < v->rows ? v->rows : *height;
	*width = *width < v->columns ? v->columns : *width;
}

static bool
images_pixels(const RtData *d, const Images *v, RtScratch *s, int64_t epoch, int64_t example, uint8_t *out, RtError *e)
{
	const Image *x = &v->at[example];
	const uint8_t *file = x->shard ? x->shard->at + x->offset : NULL;
	size_t n = x->bytes;
	RtBitmap p;
	RtBox box, window = {.width = v->columns, .height = v->rows};
	bool flip = d->train && v->flip && images_draw(d, epoch, example, 40) < 0.5;
	int width = v->columns, height = v->rows;

	if ((!x->shard && !rt_bitmap_read(x->name, s, &file, &n, e)) ||
	    !rt_bitmap_decode(file, n, v->channels, s, &p, e))
		return false;
	if (!d->train || !v->crops || !images_crop(d, v, epoch, example, &p, &box)) {
		box = (RtBox){.width = p.width, .height = p.height};
		images_whole(v, &p, &width, &height);
		window.x = (width - v->columns) / 2;
		window.y = (height - v->rows) / 2;
	}
	return rt_bitmap_scale(&p, box, width, height, window, flip, s, out, e);
}

static bool
images_make(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e)
{
	const Images *v = d->maker;
	const Image *x = &v->at[example];

	if (v->label >= 0 && out[v->label])
		rt_dtype_write(d->p->input[v->label].t.dtype, out[v->label], (double)x->label);
	if (v->image >= 0 && out[v->image]) {
		const RtInput *in = &d->p->input[v->image];
		uint8_t *bytes = in->t.dtype == RT_U8 ? out[v->image] : malloc((size_t)in->example);
		int64_t bad;
		bool good = bytes ? images_pixels(d, v, s, epoch, example, bytes, e) : rt_fail(e, "out of memory");

		if (good && bytes != out[v->image])
			rt_dtype_convert(in->t.dtype, out[v->image], RT_U8, bytes, in->example, false, &bad);
		if (bytes != out[v->image])
			free(bytes);
		if (!good)
			return x->shard ? rt_context(e, "%s: %s", x->shard->path, x->name)
			                : rt_context(e, "%s", x->name);
	}
	return true;
}

/* ---- the reader */

static void
images_free(void *maker)
{
	Images *v = maker;

	for (int64_t i = 0; i < v->n; i++)
		free(v->at[i].name);
	for (int64_t i = 0; i < v->nclass; i++)
		free(v->class[i]);
	free(v->class);
	free(v->at);
	free(v);
}

static double
images_item(const Json *list, int k, double fallback)
{
	const Json *x = list && list->kind == JSON_LIST ? list->child : NULL;

	for (; x && k > 0; k--)
		x = x->next;
	return x ? x->f : fallback;
}

static bool
images_settings(const RtData *d, Images *v, RtError *e)
{
	const Json *json = d->p->reader.json, *size = rt_json_get(json, "size"), *crop = rt_json_get(json, "crop"),
	           *ratio = rt_json_get(json, "ratio");
	int64_t pixels;

	*v = (Images){.image = -1,
	              .label = -1,
	              .resize = (int)rt_json_int(json, "resize", 0),
	              .flip = rt_json_bool(json, "flip", false),
	              .crops = crop != NULL};
	v->rows = (int)images_item(size, 0, size ? size->f : 0);
	v->columns = (int)images_item(size, 1, size ? size->f : 0);
	v->least = images_item(crop, 0, 1);
	v->most = images_item(crop, 1, 1);
	v->ratio[0] = images_item(ratio, 0, 3.0 / 4);
	v->ratio[1] = images_item(ratio, 1, 4.0 / 3);
	pixels = (int64_t)v->rows * v->columns;
	for (int k = 0; k < d->p->ninput; k++) {
		int64_t n = d->p->input[k].example;
		int *which = pixels > 0 && (n == 3 * pixels || n == pixels) && n > 1 ? &v->image
		             : n == 1                                                ? &v->label
		                                                                     : NULL;

		if (!which || *which >= 0)
			return rt_fail(e,
			               "input %s has %lld elements an example; the reader images gives an image of %d "
			               "x %d with 1 or 3 channels, and a label",
			               d->p->input[k].t.name, (long long)n, v->rows, v->columns);
		*which = k;
		v->channels = which == &v->image ? (int)(n / pixels) : v->channels;
	}
	return true;
}

bool
rt_read_images(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	Images *v = rt_alloc(sizeof *v);
	RtScratch s = {0};
	bool good = images_settings(d, v, e);

	d->maker = v;
	d->maker_free = images_free;
	d->make = images_make;
	for (int k = 0; k < d->p->ninput; k++)
		d->bytes[k] = d->p->input[k].example * rt_dtype[d->p->input[k].t.dtype].bytes;
	for (int i = 0; good && i < npattern; i++)
		good = images_pattern(d, v, folder, pattern[i], e);
	good = good && images_labels(d, v, e);
	for (int64_t i = 0; good && i < v->n && v->n <= IMAGES_CHECK; i++)
		good = images_head(&v->at[i], &s, e);
	rt_scratch_free(&s);
	d->examples = v->n;
	return good;
}
