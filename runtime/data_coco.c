/* data_coco.c: images and boxes: coco(train, test, images, size, boxes, flip) reads COCO's JSON (Lin et al. 2014).
 *
 * In: JSON files with images, annotations and categories, whose images come one file behind the other, and the folder
 * of the images.   Out: image u8[N, C, H, W], boxes f32[N, M, 4] as x1 y1 x2 y2 and labels i32[N, M]. An image is
 * scaled to fit, put at the top left, the rest is 0. Category ids in rising order are 0, 1, ...; rows without a box are
 * 0 with label -1. The JSON is scanned once and never held as a tree: what is not asked for (outlines) is passed over.
 * Left out, and counted in a note: crowds, boxes without area, those beyond the first M; of training, images without
 * a box.
 * Refuses: other JSON, boxes of images or categories that are not there, files of one set with different categories,
 * images of another size than the JSON says. */
#include "bitmap.h"
#include "philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COCO_DEPTH = 200, COCO_CHECK = 10000 };

typedef struct CocoBox { int64_t image, category; double x, y, width, height; bool crowd; } CocoBox;
typedef struct CocoImage { int64_t id; char *name; int64_t width, height; int64_t first; int boxes; } CocoImage;
typedef struct Coco {
	CocoImage *image; int64_t nimage, image_room;
	CocoBox *box; int64_t nbox, box_room;    /* by image, in the file's order */
	int64_t *category; int64_t ncategory, category_room;
	int64_t crowds, empty, beyond;
	char *folder;
	int channels, rows, columns;
	int64_t most;
	bool flip;
} Coco;

/* ---- a scanner of JSON */

typedef struct Scan { const char *at, *end, *start; const char *why; } Scan;

static bool
scan_fail(Scan *s, const char *why)
{
	if (!s->why)
		s->why = why;
	return false;
}

static char
scan_peek(Scan *s)
{
	while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
		s->at++;
	return s->at < s->end ? *s->at : 0;
}

static bool
scan_char(Scan *s, char c)
{
	if (scan_peek(s) != c)
		return false;
	s->at++;
	return true;
}

/* The four hexadecimal digits of a \u, at whose u the scan stands; 0 where there are none, or for a zero byte. */
static uint32_t
scan_unicode(Scan *s)
{
	uint32_t code = 0;

	if (s->end - s->at < 5 || *s->at != 'u')
		return 0;
	for (int i = 1; i <= 4; i++) {
		const char *digits = "0123456789abcdef0123456789ABCDEF",
		           *d = s->at[i] ? strchr(digits, s->at[i]) : NULL;

		if (!d)
			return 0;
		code = code << 4 | (uint32_t)((d - digits) & 15);
	}
	s->at += 5;
	return code;
}

/* What is behind a backslash, as UTF-8 in c: its bytes, 0 where it is no escape. Beyond 0xFFFF two escapes make a
 * character. */
static int
scan_escape(Scan *s, char *c)
{
	const char *of = "\"\\/bfnrt", *is = "\"\\/\b\f\n\r\t",
	           *which = s->at < s->end && *s->at ? strchr(of, *s->at) : NULL;

	if (which) {
		*c = is[which - of];
		s->at++;
		return 1;
	}
	uint32_t code = scan_unicode(s), low = 0;

	if (code >> 10 == 0x36) {
		low = s->at < s->end && *s->at == '\\' ? (s->at++, scan_unicode(s)) : 0;
		code = low >> 10 == 0x37 ? 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff)) : 0;
	} else if (code >> 10 == 0x37) {
		return 0;
	}
	int n = code == 0 ? 0 : code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

	for (int i = n - 1; i > 0; i--, code >>= 6)
		c[i] = (char)(0x80 | (code & 0x3f));
	if (n)
		c[0] = (char)(n == 1 ? code : (0xf00u >> n & 0xff) | code);
	return n;
}

/* A string; out, if not NULL, gets at most room - 1 bytes of it, with escapes resolved. */
static bool
scan_string(Scan *s, char *out, size_t room)
{
	size_t n = 0;

	if (!scan_char(s, '"'))
		return scan_fail(s, "a string expected");
	while (s->at < s->end && *s->at != '"') {
		char c[4] = {*s->at++};
		int bytes = 1;

		if (*c == '\\' && out) {
			bytes = scan_escape(s, c);
			if (!bytes)
				return scan_fail(s, "a name with an escape that is not one of JSON's");
		} else if (*c == '\\') {
			s->at += s->at < s->end;
		}
		if (out && n + (size_t)bytes < room) {
			memcpy(out + n, c, (size_t)bytes);
			n += (size_t)bytes;
		}
	}
	if (out)
		out[n] = 0;
	return scan_char(s, '"') || scan_fail(s, "a string does not end");
}

static bool
scan_number(Scan *s, double *x)
{
	char text[64], *stop;
	size_t n = 0;

	scan_peek(s);
	while (s->at < s->end && n + 1 < sizeof text && *s->at && strchr("+-.0123456789eE", *s->at))
		text[n++] = *s->at++;
	text[n] = 0;
	*x = strtod(text, &stop);
	return (n && !*stop && isfinite(*x)) || scan_fail(s, "a number expected");
}

/* Over any value. */
static bool
scan_skip(Scan *s)
{
	int depth = 0;

	do {
		char c = scan_peek(s);

		if (c == '"') {
			if (!scan_string(s, NULL, 0))
				return false;
		} else if (c == '[' || c == '{') {
			s->at++;
			if (++depth > COCO_DEPTH)
				return scan_fail(s, "nested too deeply");
		} else if (c == ']' || c == '}') {
			s->at++;
			depth--;
		} else if (c == ',' || c == ':') {
			if (!depth)
				return scan_fail(s, "a value expected");
			s->at++;
		} else {
			const char *from = s->at;

			while (s->at < s->end && *s->at && !strchr(",:]}[{\" \n\r\t", *s->at))
				s->at++;
			if (s->at == from)
				return scan_fail(s, c ? "a value expected" : "the text ends too early");
		}
	} while (depth > 0);
	return depth == 0 || scan_fail(s, "a value expected");
}

typedef bool ScanMember(Scan *s, const char *name, void *cx);

static bool
scan_object(Scan *s, ScanMember *member, void *cx)
{
	char name[64];

	if (!scan_char(s, '{'))
		return scan_fail(s, "an object expected");
	if (scan_char(s, '}'))
		return true;
	do {
		if (!scan_string(s, name, sizeof name) || !(scan_char(s, ':') || scan_fail(s, "a colon expected")) ||
		    !member(s, name, cx))
			return false;
	} while (scan_char(s, ','));
	return scan_char(s, '}') || scan_fail(s, "a comma or the object's end expected");
}

/* A list of objects, each put at the end of an array of items of `size` bytes. */
static bool
scan_list(Scan *s, ScanMember *member, void **at, int64_t *n, int64_t *room, size_t size)
{
	if (!scan_char(s, '['))
		return scan_fail(s, "a list expected");
	if (scan_char(s, ']'))
		return true;
	do {
		uint8_t *item;

		if (*n == *room) {
			void *more = realloc(*at, size * (size_t)(*room = *room ? 2 * *room : 256));

			if (!more)
				return scan_fail(s, "out of memory");
			*at = more;
		}
		item = (uint8_t *)*at + (size_t)*n * size;
		memset(item, 0, size);
		(*n)++;
		if (!scan_object(s, member, item))
			return false;
	} while (scan_char(s, ','));
	return scan_char(s, ']') || scan_fail(s, "a comma or the list's end expected");
}

static bool
scan_int(Scan *s, int64_t *x)
{
	double f;

	if (!scan_number(s, &f))
		return false;
	*x = (int64_t)f;
	return (f == floor(f) && fabs(f) < 0x1p53) || scan_fail(s, "a whole number expected");
}

/* ---- COCO's parts */

static bool
coco_image(Scan *s, const char *name, void *cx)
{
	CocoImage *x = cx;
	char file[1024];

	if (strcmp(name, "id") == 0)
		return scan_int(s, &x->id);
	if (strcmp(name, "width") == 0)
		return scan_int(s, &x->width);
	if (strcmp(name, "height") == 0)
		return scan_int(s, &x->height);
	if (strcmp(name, "file_name") != 0)
		return scan_skip(s);
	if (!scan_string(s, file, sizeof file))
		return false;
	free(x->name);
	x->name = rt_printf("%s", file);
	return true;
}

static bool
coco_annotation(Scan *s, const char *name, void *cx)
{
	CocoBox *x = cx;
	double crowd;

	if (strcmp(name, "image_id") == 0)
		return scan_int(s, &x->image);
	if (strcmp(name, "category_id") == 0)
		return scan_int(s, &x->category);
	if (strcmp(name, "iscrowd") == 0 && (scan_peek(s) == 't' || scan_peek(s) == 'f')) {
		x->crowd = scan_peek(s) == 't';
		return scan_skip(s);
	}
	if (strcmp(name, "iscrowd") == 0) {
		if (!scan_number(s, &crowd))
			return false;
		x->crowd = crowd != 0;
		return true;
	}
	if (strcmp(name, "bbox") != 0)
		return scan_skip(s);
	return (scan_char(s, '[') && scan_number(s, &x->x) && scan_char(s, ',') && scan_number(s, &x->y) &&
	        scan_char(s, ',') && scan_number(s, &x->width) && scan_char(s, ',') && scan_number(s, &x->height) &&
	        scan_char(s, ']')) ||
	       scan_fail(s, "a box of four numbers expected");
}

static bool
coco_category(Scan *s, const char *name, void *cx)
{
	return strcmp(name, "id") == 0 ? scan_int(s, cx) : scan_skip(s);
}

static bool
coco_part(Scan *s, const char *name, void *cx)
{
	Coco *v = cx;

	if (strcmp(name, "images") == 0)
		return scan_list(s, coco_image, (void **)&v->image, &v->nimage, &v->image_room, sizeof *v->image);
	if (strcmp(name, "annotations") == 0)
		return scan_list(s, coco_annotation, (void **)&v->box, &v->nbox, &v->box_room, sizeof *v->box);
	if (strcmp(name, "categories") == 0)
		return scan_list(s, coco_category, (void **)&v->category, &v->ncategory, &v->category_room,
		                 sizeof *v->category);
	return scan_skip(s);
}

/* ---- the set */

static int
coco_by_id(const void *a, const void *b)
{
	const CocoImage *x = *(CocoImage *const *)a, *y = *(CocoImage *const *)b;

	return (x->id > y->id) - (x->id < y->id);
}

static int
coco_numbers(const void *a, const void *b)
{
	return (*(const int64_t *)a > *(const int64_t *)b) - (*(const int64_t *)a < *(const int64_t *)b);
}

/* Place of an id among sorted ones, -1. */
static int64_t
coco_label(const Coco *v, int64_t id)
{
	const int64_t *at =
	        v->ncategory ? bsearch(&id, v->category, (size_t)v->ncategory, sizeof *at, coco_numbers) : NULL;

	return at ? at - v->category : -1;
}

static CocoImage *
coco_find(const Coco *v, CocoImage **by_id, int64_t id)
{
	CocoImage key = {.id = id}, *k = &key,
	          **at = v->nimage ? bsearch(&k, by_id, (size_t)v->nimage, sizeof *by_id, coco_by_id) : NULL;

	return at ? *at : NULL;
}

/* Boxes to their images: counted, then put in place. */
static bool
coco_boxes(Coco *v, const char *path, CocoImage **by_id, RtError *e)
{
	CocoBox *kept = malloc(sizeof *kept * (size_t)(v->nbox + 1));
	int64_t sum = 0;

	if (!kept)
		return rt_fail(e, "%s: out of memory", path);
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t i = 0; i < v->nbox; i++) {
			CocoBox *b = &v->box[i];
			CocoImage *x = coco_find(v, by_id, b->image);

			if (!x || coco_label(v, b->category) < 0) {
				free(kept);
				return rt_fail(e, "%s: annotation %lld is of %s %lld, which is not there", path,
				               (long long)i, x ? "category" : "image",
				               (long long)(x ? b->category : b->image));
			}
			if (b->crowd || !(b->width > 0 && b->height > 0)) {
				v->crowds += pass && b->crowd;
				v->empty += pass && !b->crowd;
			} else if (x->boxes == v->most) {
				v->beyond += pass;
			} else {
				if (pass)
					kept[x->first + x->boxes] = *b;
				x->boxes++;
			}
		}
		for (int64_t i = 0; !pass && i < v->nimage; i++) {
			v->image[i].first = sum;
			sum += v->image[i].boxes;
			v->image[i].boxes = 0;
		}
	}
	free(v->box);
	v->box = kept;
	v->nbox = sum;
	return true;
}

/* Images by id, and boxes of each; training keeps those with boxes. */
static bool
coco_join(Coco *v, const char *path, bool train, RtError *e)
{
	CocoImage **by_id = malloc(sizeof *by_id * (size_t)(v->nimage + 1));
	int64_t n = 0;
	bool good = by_id || rt_fail(e, "%s: out of memory", path);

	for (int64_t i = 0; good && i < v->nimage; i++) {
		by_id[i] = &v->image[i];
		if (!v->image[i].name || v->image[i].width < 1 || v->image[i].height < 1)
			good = rt_fail(e, "%s: image %lld of the list lacks file_name, width or height", path,
			               (long long)i);
	}
	if (good) {
		if (v->nimage)
			qsort(by_id, (size_t)v->nimage, sizeof *by_id, coco_by_id);
		if (v->ncategory)
			qsort(v->category, (size_t)v->ncategory, sizeof *v->category, coco_numbers);
		good = coco_boxes(v, path, by_id, e);
	}
	free(by_id);
	for (int64_t i = 0; good && i < v->nimage; i++)
		if (!train || v->image[i].boxes)
			v->image[n++] = v->image[i];
		else
			free(v->image[i].name);
	v->nimage = good ? n : v->nimage;
	return good;
}

static bool
coco_file(Coco *v, const char *path, bool train, RtError *e)
{
	RtFile f;
	Scan s;
	bool good;

	if (!rt_file_map(&f, path, e))
		return false;
	s = (Scan){.at = (const char *)f.at, .end = (const char *)f.at + f.n, .start = (const char *)f.at};
	good = scan_object(&s, coco_part, v) && (scan_peek(&s) == 0 || scan_fail(&s, "text behind the object"));
	if (!good)
		rt_fail(e, "%s: byte %td: %s", path, s.at - s.start, s.why ? s.why : "no JSON");
	rt_file_free(&f);
	return good && coco_join(v, path, train, e);
}

static void
coco_free(void *maker)
{
	Coco *v = maker;

	for (int64_t i = 0; i < v->nimage; i++)
		free(v->image[i].name);
	free(v->image);
	free(v->box);
	free(v->category);
	free(v->folder);
	free(v);
}

/* What `more` has, behind what v has; ids are each file's own. */
static bool
coco_append(Coco *v, Coco *more, const char *path, RtError *e)
{
	int64_t images = v->nimage + more->nimage, boxes = v->nbox + more->nbox;

	if (v->ncategory != more->ncategory ||
	    memcmp(v->category, more->category, sizeof *v->category * (size_t)v->ncategory))
		return rt_fail(e, "%s: its categories are not those of the files before it", path);
	CocoImage *image = realloc(v->image, sizeof *image * (size_t)(images + 1));

	v->image = image ? image : v->image;
	CocoBox *box = realloc(v->box, sizeof *box * (size_t)(boxes + 1));

	v->box = box ? box : v->box;
	if (!image || !box)
		return rt_fail(e, "%s: out of memory", path);
	for (int64_t i = 0; i < more->nimage; i++) {
		image[v->nimage] = more->image[i];
		image[v->nimage++].first += v->nbox;
	}
	if (more->nbox)
		memcpy(box + v->nbox, more->box, sizeof *box * (size_t)more->nbox);
	v->nbox = boxes;
	v->crowds += more->crowds;
	v->empty += more->empty;
	v->beyond += more->beyond;
	more->nimage = 0; /* their names have another owner */
	return true;
}

static bool
coco_files(Coco *v, const char *folder, const char **pattern, int npattern, bool train, RtError *e)
{
	bool good = true, first = true;

	for (int i = 0; good && i < npattern; i++) {
		RtPaths paths = {0};

		good = rt_paths_find(&paths, folder, pattern[i], e);
		for (int k = 0; good && k < paths.n; k++, first = false) {
			if (first) {
				good = coco_file(v, paths.at[k], train, e);
				continue;
			}
			Coco *more = rt_alloc(sizeof *more);

			more->most = v->most;
			good = coco_file(more, paths.at[k], train, e) && coco_append(v, more, paths.at[k], e);
			coco_free(more);
		}
		rt_paths_free(&paths);
	}
	return good;
}

static void
coco_note(const RtData *d, const Coco *v)
{
	if (v->crowds + v->empty + v->beyond > 0)
		fprintf(stderr,
		        "note: %s data: %lld crowds, %lld boxes without area and %lld beyond the first %lld of an "
		        "image are left out\n",
		        d->what, (long long)v->crowds, (long long)v->empty, (long long)v->beyond, (long long)v->most);
}

/* ---- one example */

/* Rows and columns that the scaled image has, whole ones. */
static void
coco_scaled(const Coco *v, const CocoImage *x, int *height, int *width)
{
	bool by_rows = (int64_t)v->rows * x->width <= (int64_t)v->columns * x->height;

	*height = by_rows ? v->rows : (int)(x->height * v->columns / x->width);
	*width = by_rows ? (int)(x->width * v->rows / x->height) : v->columns;
	*width = *width < 1 ? 1 : *width;
	*height = *height < 1 ? 1 : *height;
}

/* A box in pixels of the scaled image, which has `width` of them in a row. */
static void
coco_put(const CocoBox *b, double scale, int width, bool flip, float out[4])
{
	double x1 = b->x * scale, x2 = (b->x + b->width) * scale;

	out[0] = (float)(flip ? width - x2 : x1);
	out[1] = (float)(b->y * scale);
	out[2] = (float)(flip ? width - x1 : x2);
	out[3] = (float)((b->y + b->height) * scale);
}

static bool
coco_pixels(const Coco *v, const CocoImage *x, bool flip, RtScratch *s, uint8_t *out, RtError *e)
{
	int64_t plane = (int64_t)v->rows * v->columns;
	int height, width;
	const uint8_t *file;
	uint8_t *small;
	size_t n;
	RtBitmap p;
	char *path = rt_printf("%s/%s", v->folder, x->name);
	bool good = rt_bitmap_read(path, s, &file, &n, e) && rt_bitmap_decode(file, n, v->channels, s, &p, e);

	coco_scaled(v, x, &height, &width);
	if (good && (p.width != x->width || p.height != x->height))
		good = rt_fail(e, "is %d x %d pixels, the JSON file says %lld x %lld", p.width, p.height,
		               (long long)x->width, (long long)x->height);
	small = good ? rt_scratch(s, 0, (size_t)width * (size_t)height * (size_t)v->channels) : NULL;
	good = good && (small || rt_fail(e, "out of memory")) &&
	       rt_bitmap_scale(&p, (RtBox){.width = p.width, .height = p.height}, width, height,
	                        (RtBox){.width = width, .height = height}, flip, s, small, e);
	memset(out, 0, (size_t)(plane * v->channels));
	for (int c = 0; good && c < v->channels; c++)
		for (int i = 0; i < height; i++)
			memcpy(out + c * plane + (int64_t)i * v->columns, small + ((int64_t)c * height + i) * width,
			       (size_t)width);
	if (!good)
		rt_context(e, "%s", path);
	free(path);
	return good;
}

static bool
coco_make(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e)
{
	const Coco *v = d->maker;
	const CocoImage *x = &v->image[example];
	double down = (double)v->rows / (double)x->height, across = (double)v->columns / (double)x->width,
	       scale = down < across ? down : across;
	bool flip = d->train && v->flip &&
	            philox_uniform((uint64_t)d->seed, philox_stream("images"), (uint64_t)epoch,
	                           64 * (uint64_t)example + 40) < 0.5;
	int height, width, types[3] = {d->p->input[0].t.dtype, d->p->input[1].t.dtype, d->p->input[2].t.dtype};

	coco_scaled(v, x, &height, &width);
	for (int64_t i = 0; i < v->most; i++) {
		bool there = i < x->boxes;
		float box[4] = {0, 0, 0, 0};

		if (there)
			coco_put(&v->box[x->first + i], scale, width, flip, box);
		for (int k = 0; out[1] && k < 4; k++)
			rt_dtype_write(types[1], out[1] + (4 * i + k) * rt_dtype[types[1]].bytes, box[k]);
		if (out[2])
			rt_dtype_write(types[2], out[2] + i * rt_dtype[types[2]].bytes,
			               there ? (double)coco_label(v, v->box[x->first + i].category) : -1);
	}
	if (!out[0])
		return true;
	if (types[0] == RT_U8)
		return coco_pixels(v, x, flip, s, out[0], e);

	uint8_t *bytes = malloc((size_t)d->p->input[0].example);
	int64_t bad;
	bool good = (bytes || rt_fail(e, "out of memory")) && coco_pixels(v, x, flip, s, bytes, e);

	if (good)
		rt_dtype_convert(types[0], out[0], RT_U8, bytes, d->p->input[0].example, false, &bad);
	free(bytes);
	return good;
}

/* ---- the reader */

static bool
coco_settings(RtData *d, Coco *v, const char *folder, RtError *e)
{
	const Json *json = d->p->reader.json, *size = rt_json_get(json, "size"), *images = rt_json_get(json, "images");
	const Json *of = images ? images->child : NULL, *high = size && size->kind == JSON_LIST ? size->child : size;
	const RtInput *in = d->p->input;

	of = of && !d->train && of->next ? of->next : of;
	if (!of || !high || d->p->ninput != 3)
		return rt_fail(e, "the reader coco gives 3 inputs, image, boxes and labels; the model has %d",
		               d->p->ninput);
	v->folder = of->s[0] == '/' ? rt_printf("%s", of->s) : rt_printf("%s/%s", folder, of->s);
	v->rows = (int)high->i;
	v->columns = (int)(high != size && high->next ? high->next->i : high->i);
	v->most = rt_json_int(json, "boxes", 1);
	v->flip = rt_json_bool(json, "flip", false);
	v->channels = (int)(in[0].example / ((int64_t)v->rows * v->columns));
	if ((v->channels != 1 && v->channels != 3) || in[0].example != (int64_t)v->channels * v->rows * v->columns)
		return rt_fail(e,
		               "input %s has %lld elements an example; the reader coco gives an image of %d x %d with "
		               "1 or 3 channels",
		               in[0].t.name, (long long)in[0].example, v->rows, v->columns);
	for (int k = 0; k < 3; k++) {
		if (k && in[k].example != (k == 1 ? 4 : 1) * v->most)
			return rt_fail(e, "input %s has %lld elements an example; the reader coco gives %lld",
			               in[k].t.name, (long long)in[k].example, (long long)((k == 1 ? 4 : 1) * v->most));
		d->bytes[k] = in[k].example * rt_dtype[in[k].t.dtype].bytes;
	}
	return true;
}

/* Headers, where they are few. */
static bool
coco_heads(const Coco *v, RtError *e)
{
	RtScratch s = {0};
	bool good = true;

	for (int64_t i = 0; good && v->nimage <= COCO_CHECK && i < v->nimage; i++) {
		char *path = rt_printf("%s/%s", v->folder, v->image[i].name);

		good = rt_bitmap_head(path, &s, e) || rt_context(e, "%s", path);
		free(path);
	}
	rt_scratch_free(&s);
	return good;
}

bool
rt_read_coco(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	Coco *v = rt_alloc(sizeof *v);
	const RtInput *labels = &d->p->input[d->p->ninput > 2 ? 2 : 0];
	bool good;

	d->maker = v;
	d->maker_free = coco_free;
	d->make = coco_make;
	if (!coco_settings(d, v, folder, e))
		return false;
	good = coco_files(v, folder, pattern, npattern, d->train, e);
	if (good && labels->limit > 0 && v->ncategory > labels->limit)
		good = rt_fail(e, "%s: %lld categories, input %s takes 0..%lld", pattern[0], (long long)v->ncategory,
		               labels->t.name, (long long)labels->limit - 1);
	if (!good || !coco_heads(v, e))
		return false;
	coco_note(d, v);
	d->examples = v->nimage;
	return true;
}
