/* fail.c: a library that is loaded before a program (LD_PRELOAD): allocation number $FAIL_AT fails, and no other. With
 * $FAIL_COUNT in place of it none does, and the number of allocations is the last line of stderr. What the program
 * starts is left alone. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static long count, at;
static int armed;

static int
fails(void)
{
	if (!armed || __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != at)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *
malloc(size_t bytes)
{
	return fails() ? NULL : __libc_malloc(bytes);
}

void *
calloc(size_t n, size_t bytes)
{
	return fails() ? NULL : __libc_calloc(n, bytes);
}

void *
realloc(void *p, size_t bytes)
{
	return fails() ? NULL : __libc_realloc(p, bytes);
}

void *
aligned_alloc(size_t align, size_t bytes)
{
	return fails() ? NULL : __libc_memalign(align, bytes);
}

__attribute__((constructor)) static void
begin(void)
{
	const char *text = getenv("FAIL_AT");

	at = text ? atol(text) : 0;
	armed = text || getenv("FAIL_COUNT");
	unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void
end(void)
{
	char line[64];

	if (getenv("FAIL_COUNT") && write(2, line, (size_t)snprintf(line, sizeof line, "%ld\n", count)) < 0)
		_exit(3);
}
