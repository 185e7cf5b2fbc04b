/* bitmap.c: JPEG and PNG files as rows of bytes, by libjpeg-turbo and libpng.
 *
 * In: a file's bytes, not trusted.   Out: 8-bit RGB or grey. The format is told by the first bytes. JPEG is decoded by
 * the accurate integer DCT with smooth chroma, the library's defaults; CMYK is taken as Adobe writes it, inverted. Of
 * PNG, palettes and fewer bits become bytes, of 16 bits the upper 8 are kept, alpha is dropped. Grey of colour is 0.299
 * R + 0.587 G + 0.114 B in 16-bit fixed point.
 * Refuses: other formats, broken and truncated data, more than 2^27 pixels, more than 500 scans of a progressive
 * JPEG. */
#include "bitmap.h"

#include <errno.h>
#include <fcntl.h>
#include <jpeglib.h>
#include <jerror.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PICTURE_PIXELS = 1 << 27, PICTURE_SCANS = 500, PICTURE_HEAD = 32768 };

static bool
bitmap_fits(int64_t width, int64_t height, RtError *e)
{
	return (width > 0 && height > 0 && width * height <= PICTURE_PIXELS) ||
	       rt_fail(e, "%lld x %lld pixels, at most %d million are read", (long long)width, (long long)height,
	               PICTURE_PIXELS / 1000000);
}

static bool
is_jpeg(const uint8_t *file, size_t n)
{
	return n >= 3 && file[0] == 0xff && file[1] == 0xd8 && file[2] == 0xff;
}

static bool
is_png(const uint8_t *file, size_t n)
{
	return n >= 8 && memcmp(file, "\x89PNG\r\n\x1a\n", 8) == 0;
}

static bool
bitmap_unknown(const uint8_t *file, size_t n, RtError *e)
{
	if (n == 0)
		return rt_fail(e, "is empty");
	if (n >= 6 && memcmp(file, "GIF8", 4) == 0)
		return rt_fail(e, "is a GIF, and neither JPEG nor PNG");
	if (n >= 12 && memcmp(file, "RIFF", 4) == 0 && memcmp(file + 8, "WEBP", 4) == 0)
		return rt_fail(e, "is a WebP, and neither JPEG nor PNG");
	return rt_fail(e, "is neither JPEG nor PNG");
}

/* The frame header's extents, if the markers lead to it within these bytes. */
static void
jpeg_size(const uint8_t *f, size_t n, int *width, int *height)
{
	for (size_t at = 2; at + 9 < n && f[at] == 0xff;) {
		int m = f[at + 1];
		size_t length = (size_t)f[at + 2] << 8 | f[at + 3];

		if (m == 0xff) {
			at++;
			continue;
		}
		if (m >= 0xc0 && m <= 0xcf && m != 0xc4 && m != 0xc8 && m != 0xcc) {
			*height = f[at + 5] << 8 | f[at + 6];
			*width = f[at + 7] << 8 | f[at + 8];
			return;
		}
		if (m == 0xd9 || m == 0xda || length < 2)
			return;
		at += 2 + length;
	}
}

bool
rt_bitmap_size(const uint8_t *file, size_t n, int *width, int *height, RtError *e)
{
	*width = *height = 0;
	if (is_jpeg(file, n)) {
		jpeg_size(file, n, width, height);
	} else if (is_png(file, n)) {
		if (n < 24 || memcmp(file + 12, "IHDR", 4) != 0)
			return rt_fail(e, "truncated PNG");
		if (file[16] >= 0x80 || file[20] >= 0x80)
			return rt_fail(e, "PNG: an extent is too large");
		*width = file[16] << 24 | file[17] << 16 | file[18] << 8 | file[19];
		*height = file[20] << 24 | file[21] << 16 | file[22] << 8 | file[23];
		return bitmap_fits(*width, *height, e);
	} else {
		return bitmap_unknown(file, n, e);
	}
	return *width == 0 || *height == 0 || bitmap_fits(*width, *height, e);
}

bool
rt_bitmap_read(const char *path, RtScratch *s, const uint8_t **at, size_t *n, RtError *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *room;

	*n = 0;
	if (fd < 0 || fstat(fd, &st) != 0 || S_ISDIR(st.st_mode)) {
		rt_fail(e, "%s", fd >= 0 && S_ISDIR(st.st_mode) ? "is a folder" : strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	*at = room = rt_scratch(s, 0, (size_t)st.st_size + 1);
	while (room && *n < (size_t)st.st_size) {
		ssize_t k = read(fd, room + *n, (size_t)st.st_size - *n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0) {
			rt_fail(e, "%s", strerror(errno));
			close(fd);
			return false;
		}
		if (k == 0)
			break;
		*n += (size_t)k;
	}
	close(fd);
	return room || rt_fail(e, "out of memory (%lld bytes)", (long long)st.st_size);
}

bool
rt_bitmap_head(const char *path, RtScratch *s, RtError *e)
{
	uint8_t *room = rt_scratch(s, 0, PICTURE_HEAD);
	int fd = open(path, O_RDONLY | O_CLOEXEC), width, height;
	ssize_t k = fd >= 0 && room ? read(fd, room, PICTURE_HEAD) : -1;
	int why = errno;

	if (fd >= 0)
		close(fd);
	return k < 0 ? rt_fail(e, "%s", room ? strerror(why) : "out of memory")
	             : rt_bitmap_size(room, (size_t)k, &width, &height, e);
}

/* ---- JPEG */

typedef struct Jpeg {
	struct jpeg_decompress_struct z;
	struct jpeg_error_mgr err;
	struct jpeg_progress_mgr progress;
	jmp_buf back;
	char why[JMSG_LENGTH_MAX];
} Jpeg;

static void
jpeg_stop(j_common_ptr z)
{
	Jpeg *j = z->client_data;

	z->err->format_message(z, j->why);
	longjmp(j->back, 1);
}

/* What is missing at the end is filled with grey by the library, with a warning: that is an error here. */
static void
jpeg_message(j_common_ptr z, int level)
{
	int code = z->err->msg_code;

	if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER))
		jpeg_stop(z);
}

static void
jpeg_scan(j_common_ptr z)
{
	Jpeg *j = z->client_data;

	if (z->is_decompressor && ((j_decompress_ptr)z)->input_scan_number > PICTURE_SCANS) {
		snprintf(j->why, sizeof j->why, "more than %d scans", PICTURE_SCANS);
		longjmp(j->back, 1);
	}
}

static void
cmyk_row(uint8_t *out, const uint8_t *in, int width)
{
	for (int i = 0; i < width; i++, in += 4, out += 3)
		for (int c = 0; c < 3; c++) {
			int t = in[c] * in[3] + 128;

			out[c] = (uint8_t)((t + (t >> 8)) >> 8);
		}
}

static void
jpeg_rows(Jpeg *j, uint8_t *out, uint8_t *line)
{
	size_t stride = (size_t)j->z.output_width * 3;

	while (j->z.output_scanline < j->z.output_height) {
		uint8_t *row = line ? line : out;

		jpeg_read_scanlines(&j->z, &row, 1);
		if (line)
			cmyk_row(out, line, (int)j->z.output_width);
		out += stride;
	}
}

static bool
jpeg_decode(const uint8_t *file, size_t n, RtScratch *s, RtBitmap *p, RtError *e)
{
	Jpeg *j = rt_scratch(s, 5, sizeof *j);
	bool good = true;

	if (!j)
		return rt_fail(e, "out of memory");
	memset(j, 0, sizeof *j);
	j->z.err = jpeg_std_error(&j->err);
	j->err.error_exit = jpeg_stop;
	j->err.emit_message = jpeg_message;
	j->z.client_data = j;
	if (setjmp(j->back)) {
		rt_fail(e, "JPEG: %s", j->why);
		jpeg_destroy_decompress(&j->z);
		return false;
	}
	jpeg_create_decompress(&j->z);
	j->progress.progress_monitor = jpeg_scan;
	j->z.progress = &j->progress;
	jpeg_mem_src(&j->z, file, n);
	jpeg_read_header(&j->z, TRUE);
	good = bitmap_fits(j->z.image_width, j->z.image_height, e);
	if (good) {
		bool cmyk = j->z.jpeg_color_space == JCS_CMYK || j->z.jpeg_color_space == JCS_YCCK;
		size_t bytes = (size_t)j->z.image_width * j->z.image_height * 3,
		       line = cmyk ? (size_t)j->z.image_width * 4 : 0;
		uint8_t *out = rt_scratch(s, 1, bytes + line);

		j->z.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
		*p = (RtBitmap){
		        .width = (int)j->z.image_width, .height = (int)j->z.image_height, .channels = 3, .at = out};
		good = out || rt_fail(e, "out of memory (%zu bytes)", bytes);
		if (good && jpeg_start_decompress(&j->z))
			jpeg_rows(j, out, cmyk ? out + bytes : NULL);
		if (good)
			jpeg_finish_decompress(&j->z);
	}
	jpeg_destroy_decompress(&j->z);
	return good;
}

/* ---- PNG */

typedef struct PngIn { const uint8_t *at; size_t left; char why[128]; } PngIn;

static void
png_stop(png_structp z, png_const_charp text)
{
	PngIn *in = png_get_error_ptr(z);

	snprintf(in->why, sizeof in->why, "%s", text);
	longjmp(png_jmpbuf(z), 1);
}

static void
png_warn(png_structp z, png_const_charp text)
{
	(void)z;
	(void)text;
}

static void
png_take(png_structp z, png_bytep out, size_t n)
{
	PngIn *in = png_get_io_ptr(z);

	if (n > in->left)
		png_error(z, "truncated");
	memcpy(out, in->at, n);
	in->at += n;
	in->left -= n;
}

/* Every kind of PNG to rows of RGB. */
static bool
png_rows(png_structp z, png_infop info, RtScratch *s, RtBitmap *p, RtError *e)
{
	int64_t width, height;
	uint8_t *out;
	png_bytep *row;

	png_read_info(z, info);
	width = png_get_image_width(z, info);
	height = png_get_image_height(z, info);
	if (!bitmap_fits(width, height, e))
		return false;
	png_set_strip_16(z);
	png_set_packing(z);
	if (png_get_color_type(z, info) == PNG_COLOR_TYPE_PALETTE)
		png_set_palette_to_rgb(z);
	else if (png_get_bit_depth(z, info) < 8)
		png_set_expand_gray_1_2_4_to_8(z);
	png_set_strip_alpha(z);
	png_set_gray_to_rgb(z);
	png_set_interlace_handling(z);
	png_read_update_info(z, info);
	if (png_get_rowbytes(z, info) != (size_t)width * 3)
		return rt_fail(e, "PNG: rows of %zu bytes", png_get_rowbytes(z, info));
	out = rt_scratch(s, 1, (size_t)(width * height * 3));
	row = rt_scratch(s, 5, sizeof *row * (size_t)height);
	if (!out || !row)
		return rt_fail(e, "out of memory (%lld bytes)", (long long)(width * height * 3));
	for (int64_t i = 0; i < height; i++)
		row[i] = out + i * width * 3;
	*p = (RtBitmap){.width = (int)width, .height = (int)height, .channels = 3, .at = out};
	png_read_image(z, row);
	png_read_end(z, NULL);
	return true;
}

static bool
png_decode(const uint8_t *file, size_t n, RtScratch *s, RtBitmap *p, RtError *e)
{
	PngIn in = {.at = file, .left = n};
	png_structp z = png_create_read_struct(PNG_LIBPNG_VER_STRING, &in, png_stop, png_warn);
	png_infop info = z ? png_create_info_struct(z) : NULL;
	bool good = false;

	if (!info)
		rt_fail(e, "out of memory");
	else if (setjmp(png_jmpbuf(z)))
		good = rt_fail(e, "PNG: %s", in.why);
	else {
		png_set_user_limits(z, PICTURE_PIXELS, PICTURE_PIXELS);
		png_set_read_fn(z, &in, png_take);
		good = png_rows(z, info, s, p, e);
	}
	png_destroy_read_struct(&z, &info, NULL);
	return good;
}

/* ---- either */

static void
bitmap_grey(RtBitmap *p)
{
	uint8_t *out = (uint8_t *)(uintptr_t)p->at;
	const uint8_t *in = p->at;
	int64_t n = (int64_t)p->width * p->height;

	for (int64_t i = 0; i < n; i++, in += 3)
		out[i] = (uint8_t)((in[0] * 19595 + in[1] * 38470 + in[2] * 7471 + 0x8000) >> 16);
	p->channels = 1;
}

bool
rt_bitmap_decode(const uint8_t *file, size_t n, int channels, RtScratch *s, RtBitmap *p, RtError *e)
{
	bool jpeg = is_jpeg(file, n);

	if (!jpeg && !is_png(file, n))
		return bitmap_unknown(file, n, e);
	if (!(jpeg ? jpeg_decode(file, n, s, p, e) : png_decode(file, n, s, p, e)))
		return false;
	if (channels == 1)
		bitmap_grey(p);
	return true;
}
