/* bitmap.h: JPEG and PNG files as rows of bytes, and their scaling. Of librtimages.a, which only executables are
 * linked with whose reader meets images. */
#ifndef RUNTIME_PICTURE_H
#define RUNTIME_PICTURE_H
#include "host.h"

/* Rows of RGB or grey bytes, the channels of a pixel side by side. */
typedef struct RtBitmap { int width, height, channels; const uint8_t *at; } RtBitmap;
/* A rectangle of an image, in pixels. */
typedef struct RtBox { int x, y, width, height; } RtBox;

/* What a file's first bytes say: false after rt_fail where that is no image, or one that is too large. 0 x 0: not
 * within these bytes. */
bool rt_bitmap_size(const uint8_t *file, size_t n, int *width, int *height, RtError *e);
/* The whole image, in scratch 1, with 1 or 3 channels. */
bool rt_bitmap_decode(const uint8_t *file, size_t n, int channels, RtScratch *s, RtBitmap *p, RtError *e);
/* A box of the image is scaled to width x height; of that a window goes to out, channel by channel, mirrored where
 * flip says so. Uses scratch 2 to 4. */
bool rt_bitmap_scale(const RtBitmap *p, RtBox box, int width, int height, RtBox window, bool flip, RtScratch *s,
                      uint8_t *out, RtError *e);
/* What the first bytes of a file say. */
bool rt_bitmap_head(const char *path, RtScratch *s, RtError *e);
/* The file into scratch 0. */
bool rt_bitmap_read(const char *path, RtScratch *s, const uint8_t **at, size_t *n, RtError *e);
#endif
