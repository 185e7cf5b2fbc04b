/* entry.h: what main of an executable that mantou links begins with: its code objects, for entry.c and race/main.c. */
#ifndef RT_ENTRY_H
#define RT_ENTRY_H
#include "rt.h"
#include <stddef.h>

/* One an architecture, best first; a program of fewer has no definition of the others. */
#define RT_OBJECTS(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11) I(12) I(13) I(14) I(15)
#define RT_OBJECT(i) extern const RtCodeObject mantou_object_##i __attribute__((weak));
RT_OBJECTS(RT_OBJECT)
#undef RT_OBJECT

/* run is rt_main, or what stands before it. */
static inline int
rt_entry(int argc, char **argv, int (*run)(int argc, char **argv, const RtCodeObject *const *objects, int nobjects))
{
#define RT_OBJECT(i) &mantou_object_##i,
	const RtCodeObject *const objects[] = {RT_OBJECTS(RT_OBJECT) NULL};
#undef RT_OBJECT
	int n = 0;

	while (objects[n])
		n++;
	return run(argc, argv, objects, n);
}
#endif
