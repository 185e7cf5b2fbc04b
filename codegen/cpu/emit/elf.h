/* elf.h: relocatable objects joined into one; private to codegen/cpu. */
#ifndef CODEGEN_CPU_ELF_H
#define CODEGEN_CPU_ELF_H
#include "../../../ir/base.h"

/* One object. name: what the others call the one function that it gives them; NULL: all that it defines stays visible
 * outside under its own names. */
typedef struct ElfPiece { const char *name; const char *at; size_t n; } ElfPiece;
void elf_join(const ElfPiece *piece, uint32_t n, Buf *out);
#endif
