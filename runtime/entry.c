/* entry.c: main of an executable that mantou links; a racing program has another (race/main.c). */
#include "entry.h"

int
main(int argc, char **argv)
{
	return rt_entry(argc, argv, rt_main);
}
