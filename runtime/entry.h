/* entry.h: what main of an executable that mantou links begins with: its images, for entry.c and race/main.c. */
#ifndef RT_ENTRY_H
#define RT_ENTRY_H
#include "rt.h"
#include <stddef.h>

/* One an architecture, best first; a program of fewer has no definition of the others. */
#define RT_IMAGES(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11) I(12) I(13) I(14) I(15)
#define RT_IMAGE(i) extern const RtImage mantou_image_##i __attribute__((weak));
RT_IMAGES(RT_IMAGE)
#undef RT_IMAGE

/* run is rt_main, or what stands before it. */
static inline int
rt_entry(int argc, char **argv, int (*run)(int argc, char **argv, const RtImage *const *images, int nimages))
{
#define RT_IMAGE(i) &mantou_image_##i,
	const RtImage *const images[] = {RT_IMAGES(RT_IMAGE) NULL};
#undef RT_IMAGE
	int n = 0;

	while (images[n])
		n++;
	return run(argc, argv, images, n);
}
#endif
