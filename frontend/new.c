/* new.c: memory that LLVM asks for and does not get ends the program as all other memory does: with a message.
 *
 * In: bytes.   Out: memory, never NULL. C++'s operator new would throw through C, which is the end without a word. The
 * loader takes these definitions, which mantou exports, for those of libstdc++, in libLLVM too; names are the C++ ABI's
 * for x86-64. Where LLVM calls malloc itself it asks a handler (codegen/libllvm.c). */
#include "cmd.h"

#include <stdlib.h>

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
void *new_plain(size_t bytes) __asm__("_Znwm");
void *new_aligned(size_t bytes, size_t align) __asm__("_ZnwmSt11align_val_t");

void *
new_plain(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	if (!p)
		die("out of memory (%zu bytes wanted)", bytes);
	return p;
}

void *
new_aligned(size_t bytes, size_t align)
{
	void *p = aligned_alloc(align, (bytes + align - 1) / align * align);

	if (!p)
		die("out of memory (%zu bytes wanted)", bytes);
	return p;
}
#endif
