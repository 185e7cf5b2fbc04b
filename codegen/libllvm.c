/* libllvm.c: LLVM, opened when the first of its functions is called.
 *
 * In: libllvm.def.   Out: a function of each of those names, which jumps to LLVM's own; what calls them is compiled
 * with LLVM's headers and knows nothing of this. The library has 130 MB, and many relocations: a command that needs
 * none of it starts in 1 ms without it, in 15 with it. A library that is not there, or lacks a function, ends the
 * program with a message. The first call may come from several threads at once. */
#define _GNU_SOURCE
#include "diag.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

void libllvm_first(void) __attribute__((visibility("hidden")));
void libllvm_open(void) __attribute__((visibility("hidden"), used));

/* Where each function lies: libllvm_first until LLVM is open. */
#define F(name) void *name##_place __attribute__((visibility("hidden"), used)) = (void *)libllvm_first;
#include "libllvm.def"
#undef F

/* A function's name, jumping to its place, whose address stays in r11: neither arguments nor results live there (System
 * V Application Binary Interface, AMD64). */
#define F(name) \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" \
	        "\tlea " #name "_place(%rip), %r11\n\tjmp *(%r11)\n.size " #name ", . - " #name "\n");
#include "libllvm.def"
#undef F

/* The first call: with all registers that may hold arguments as they were it goes where it wanted to. */
__asm__(".text\n.type libllvm_first, @function\nlibllvm_first:\n"
        "\tpush %rbp\n\tmov %rsp, %rbp\n"
        "\tpush %rax\n\tpush %rdi\n\tpush %rsi\n\tpush %rdx\n\tpush %rcx\n"
        "\tpush %r8\n\tpush %r9\n\tpush %r10\n\tpush %r11\n"
        "\tsub $136, %rsp\n"
        "\tmovups %xmm0, 0(%rsp)\n\tmovups %xmm1, 16(%rsp)\n\tmovups %xmm2, 32(%rsp)\n\tmovups %xmm3, 48(%rsp)\n"
        "\tmovups %xmm4, 64(%rsp)\n\tmovups %xmm5, 80(%rsp)\n\tmovups %xmm6, 96(%rsp)\n\tmovups %xmm7, 112(%rsp)\n"
        "\tcall libllvm_open\n"
        "\tmovups 0(%rsp), %xmm0\n\tmovups 16(%rsp), %xmm1\n\tmovups 32(%rsp), %xmm2\n\tmovups 48(%rsp), %xmm3\n"
        "\tmovups 64(%rsp), %xmm4\n\tmovups 80(%rsp), %xmm5\n\tmovups 96(%rsp), %xmm6\n\tmovups 112(%rsp), %xmm7\n"
        "\tadd $136, %rsp\n"
        "\tpop %r11\n\tpop %r10\n\tpop %r9\n\tpop %r8\n"
        "\tpop %rcx\n\tpop %rdx\n\tpop %rsi\n\tpop %rdi\n\tpop %rax\n\tpop %rbp\n"
        "\tjmp *(%r11)\n.size libllvm_first, . - libllvm_first\n");

/* LLVM calls malloc itself, too, and asks a handler where it gets nothing: only C++ can name the function that sets
 * it. */
typedef void BadAlloc(void *cx, const char *why, bool dump);
#define SET_BAD_ALLOC "_ZN4llvm31install_bad_alloc_error_handlerEPFvPvPKcbES0_"

static void
bad_alloc(void *cx, const char *why, bool dump)
{
	(void)cx, (void)why, (void)dump;
	die("out of memory, in LLVM");
}

static void
open_once(void)
{
	/* Debian's name, that of LLVM's own packages, and where llvm-config said when mantou was built */
#define AT MANTOU_LLVM_LIBDIR "/"
	static const char *const places[] = {"libLLVM.so.19.1", "libLLVM-19.so.1", "libLLVM-19.so",
	                                     AT "libLLVM.so.19.1", AT "libLLVM-19.so"};
#undef AT
	const char *given = getenv("MANTOU_LIBLLVM");
	void *library = given && *given ? dlopen(given, RTLD_LAZY | RTLD_LOCAL) : NULL;
	void (*set)(BadAlloc *f, void *cx);

	for (size_t i = 0; !(given && *given) && !library && i < sizeof places / sizeof *places; i++)
		library = dlopen(places[i], RTLD_LAZY | RTLD_LOCAL);
	if (!library)
		die("machine code needs LLVM 19, and %s was not found (Debian: apt-get install libllvm19; elsewhere "
		    "MANTOU_LIBLLVM says where it is): %s", given && *given ? given : places[0], dlerror());
#define F(name) \
	if (!(name##_place = dlsym(library, #name))) \
		die("LLVM's library has no " #name ": mantou was built for LLVM 19");
#include "libllvm.def"
#undef F
	if ((*(void **)&set = dlsym(library, SET_BAD_ALLOC)))
		set(bad_alloc, NULL);
}

void
libllvm_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_once);
}
