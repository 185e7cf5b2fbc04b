/* fuzz_bitmap.c: any bytes as a JPEG or PNG: its header, then whole, then scaled; or an error with words. */
#include "../../runtime/bitmap.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>
#include <png.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static RtScratch s;
	RtError e = {""};
	RtBitmap p;
	uint8_t out[3 * 8 * 9];
	int width, height;

	if (!rt_bitmap_size(data, n, &width, &height, &e)) {
		if (!*e.text)
			abort();
		return 0;
	}
	if ((int64_t)width * height > 1 << 20)       /* time, not memory, is what a large one costs */
		return 0;
	for (int channels = 1; channels <= 3; channels += 2) {
		if (!rt_bitmap_decode(data, n, channels, &s, &p, &e)) {
			if (!*e.text)
				abort();
			continue;
		}
		if (p.channels != channels || p.width < 1 || p.height < 1 ||
		    (width && (p.width != width || p.height != height)))
			abort();
		if (!rt_bitmap_scale(&p, (RtBox){.width = p.width, .height = p.height}, 9, 8,
		                      (RtBox){.width = 9, .height = 8}, n & 1, &s, out, &e) ||
		    !rt_bitmap_scale(&p,
		                      (RtBox){.x = p.width / 2,
		                              .y = p.height / 2,
		                              .width = (p.width + 1) / 2,
		                              .height = (p.height + 1) / 2},
		                      40, 33, (RtBox){.x = 31, .y = 25, .width = 9, .height = 8}, !(n & 1), &s, out,
		                      &e))
			abort();
	}
	return 0;
}

static size_t
seed_jpeg(uint8_t *out, size_t room, int kind)
{
	struct jpeg_compress_struct z;
	struct jpeg_error_mgr err;
	unsigned char *file = NULL;
	unsigned long n = 0;
	uint8_t row[17 * 4];
	JSAMPROW at = row;

	z.err = jpeg_std_error(&err);
	jpeg_create_compress(&z);
	jpeg_mem_dest(&z, &file, &n);
	z.image_width = 17;
	z.image_height = 13;
	z.input_components = kind == 1 ? 1 : kind == 2 ? 4 : 3;
	z.in_color_space = kind == 1 ? JCS_GRAYSCALE : kind == 2 ? JCS_CMYK : JCS_RGB;
	jpeg_set_defaults(&z);
	if (kind == 3)
		jpeg_simple_progression(&z);
	jpeg_start_compress(&z, TRUE);
	for (int i = 0; i < 13; i++) {
		for (int j = 0; j < (int)sizeof row; j++)
			row[j] = (uint8_t)(i * 31 + j * 7);
		jpeg_write_scanlines(&z, &at, 1);
	}
	jpeg_finish_compress(&z);
	jpeg_destroy_compress(&z);
	n = n < room ? n : 0;
	memcpy(out, file, n);
	free(file);
	return n;
}

typedef struct Grow { uint8_t *at; size_t n, room; } Grow;

static void
grow_put(png_structp z, png_bytep at, size_t n)
{
	Grow *g = png_get_io_ptr(z);

	if (g->n + n > g->room)
		png_error(z, "full");
	memcpy(g->at + g->n, at, n);
	g->n += n;
}

static size_t
seed_png(uint8_t *out, size_t room, int kind)
{
	static const int color[] = {PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_PALETTE, PNG_COLOR_TYPE_GRAY_ALPHA,
	                            PNG_COLOR_TYPE_GRAY},
	                 depth[] = {8, 4, 16, 1};
	static png_color palette[16];
	Grow g = {.at = out, .room = room};
	png_structp z = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(z);
	uint8_t row[16 * 8] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

	png_set_write_fn(z, &g, grow_put, NULL);
	png_set_IHDR(z, info, 16, 9, depth[kind], color[kind], kind == 2 ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
	             PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	if (kind == 1)
		png_set_PLTE(z, info, palette, 16);
	png_write_info(z, info);
	for (int pass = png_set_interlace_handling(z); pass-- > 0;)
		for (int i = 0; i < 9; i++)
			png_write_row(z, row);
	png_write_end(z, NULL);
	png_destroy_write_struct(&z, &info);
	return g.n;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	return k < 4 ? seed_jpeg(out, room, k) : k < 8 ? seed_png(out, room, k - 4) : 0;
}
