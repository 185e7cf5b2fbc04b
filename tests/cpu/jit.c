/* jit.c: an object of the CPU target loaded into this process, with LLVM's ORC.
 *
 * In: the bytes that emit wrote, so LLVM's targets are set up already.   Out: addresses of its symbols. Symbols of this
 * process are visible to it: rt_parallel and whatever else emitted code calls is the test's own. Errors come as LLVM
 * words them. */
#define _GNU_SOURCE
#include "harness.h"
#include <llvm-c/Core.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct Jit { LLVMOrcLLJITRef j; };

/* The kernel grants the registers of matrix tiles on request: what host.c does for executables. */
static void
ask_for_tiles(void)
{
#if defined(__x86_64__)
	(void)syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#endif
}

Jit *
jit_load(const void *object, size_t bytes, const char **error)
{
	static _Thread_local char text[512];
	LLVMOrcLLJITRef j = NULL;
	LLVMErrorRef err;
	LLVMOrcDefinitionGeneratorRef gen;

	ask_for_tiles();
	if (!(err = LLVMOrcCreateLLJIT(&j, NULL))) {
		err = LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(&gen, LLVMOrcLLJITGetGlobalPrefix(j), NULL,
		                                                           NULL);
		if (!err) {
			LLVMOrcJITDylibAddGenerator(LLVMOrcLLJITGetMainJITDylib(j), gen);
			err = LLVMOrcLLJITAddObjectFile(j, LLVMOrcLLJITGetMainJITDylib(j),
			    LLVMCreateMemoryBufferWithMemoryRangeCopy(object, bytes, "object"));
		}
	}
	if (err) {
		char *m = LLVMGetErrorMessage(err);

		snprintf(text, sizeof text, "%s", m);
		LLVMDisposeErrorMessage(m);
		*error = text;
		if (j)
			LLVMConsumeError(LLVMOrcDisposeLLJIT(j));
		return NULL;
	}
	Jit *r = malloc(sizeof *r);

	if (!r)
		die("out of memory");
	r->j = j;
	return r;
}

void *
jit_symbol(Jit *j, const char *name)
{
	LLVMOrcExecutorAddress a = 0;
	LLVMErrorRef err = LLVMOrcLLJITLookup(j->j, &a, name);

	if (err) {
		char *m = LLVMGetErrorMessage(err);

		fprintf(stderr, "%s: %s\n", name, m);
		LLVMDisposeErrorMessage(m);
		return NULL;
	}
	return (void *)(uintptr_t)a;
}

void
jit_close(Jit *j)
{
	LLVMConsumeError(LLVMOrcDisposeLLJIT(j->j));
	free(j);
}
