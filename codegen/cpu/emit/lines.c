/* lines.c: line tables (-g): the lines of a .net that kernels come from, for debuggers and perf.
 *
 * In: a function that is emitted, the place of its group in the model (Llvm.at).   Out: debug information of its module
 * through LLVM's DIBuilder: a compile unit for each file and module, a subprogram under the kernel's name; all of a
 * kernel's instructions have the line of its most costly op. It stands in the module's bitcode, so code of another
 * line has another key in the cache. What kernels share (microkernels, small transposes) those of one line share here,
 * under a name that tells it (unit.c). Frame pointers and unwind tables lead from there to callers. */
#include "../cpu.h"
#include <llvm-c/DebugInfo.h>
#include <string.h>
#include <unistd.h>

enum { DWARF = 4 };

static void
module_flag(Llvm *l, const char *name, unsigned x)
{
	LLVMMetadataRef v = LLVMValueAsMetadata(LLVMConstInt(l->i32, x, 0));

	if (!LLVMGetModuleFlag(l->mod, name, strlen(name)))
		LLVMAddModuleFlag(l->mod, LLVMModuleFlagBehaviorWarning, name, strlen(name), v);
}

void
lines_frames(Llvm *l, V fn)
{
	static const char frames[] = "frame-pointer", all[] = "all", table[] = "uwtable";

	if (!l->debug)
		return;
	LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex,
	    LLVMCreateStringAttribute(l->cx, frames, sizeof frames - 1, all, sizeof all - 1));
	LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex,
	    LLVMCreateEnumAttribute(l->cx, LLVMGetEnumAttributeKindForName(table, sizeof table - 1), 2));
}

void
lines_add(Llvm *l, V fn, const char *name)
{
	char folder[4096];
	const char *file = l->at.file;

	if (!l->debug || !file)
		return;
	if (!getcwd(folder, sizeof folder))
		folder[0] = 0;
	LLVMDIBuilderRef d = LLVMCreateDIBuilder(l->mod);
	LLVMMetadataRef source = LLVMDIBuilderCreateFile(d, file, strlen(file), folder, strlen(folder));

	module_flag(l, "Debug Info Version", LLVMDebugMetadataVersion());
	module_flag(l, "Dwarf Version", DWARF);
	LLVMDIBuilderCreateCompileUnit(d, LLVMDWARFSourceLanguageC99, source, "mantou", 6, 1, "", 0, 0, "", 0,
	                               LLVMDWARFEmissionFull, 0, 0, 0, "", 0, "", 0);
	LLVMMetadataRef type = LLVMDIBuilderCreateSubroutineType(d, source, NULL, 0, LLVMDIFlagZero);
	unsigned line = l->at.line;
	LLVMMetadataRef sub = LLVMDIBuilderCreateFunction(d, source, name, strlen(name), "", 0, source, line, type, 1,
	                                                  1, line, LLVMDIFlagZero, 1);
	LLVMMetadataRef at = LLVMDIBuilderCreateDebugLocation(l->cx, l->at.line, l->at.column, sub, NULL);

	LLVMSetSubprogram(fn, sub);
	for (LLVMBasicBlockRef b = LLVMGetFirstBasicBlock(fn); b; b = LLVMGetNextBasicBlock(b))
		for (V i = LLVMGetFirstInstruction(b); i; i = LLVMGetNextInstruction(i))
			LLVMInstructionSetDebugLoc(i, at);
	LLVMDIBuilderFinalize(d);
	LLVMDisposeDIBuilder(d);
}
