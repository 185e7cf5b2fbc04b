/* cache.h: what compilers made, kept by content from build to build. */
#ifndef CODEGEN_CACHE_H
#define CODEGEN_CACHE_H
#include "../ir/base.h"

typedef struct CodeCache {
	char *folder;            /* NULL: there is none */
	int64_t most;            /* bytes, of files' lengths */
	bool full;               /* a write has failed: no more of them */
} CodeCache;
typedef struct CodeKey { uint64_t half[2]; } CodeKey;

/* $MANTOU_CACHE, else $XDG_CACHE_HOME/mantou, else ~/.cache/mantou, and there a folder for this kind. None where
 * MANTOU_CACHE=off or none of them is set. Nothing is made before something is kept. */
CodeCache cache_open(Arena *a, const char *kind);
/* Of all that decides the result: what is compiled, and in words the rest. */
CodeKey cache_key(const void *at, size_t n, const char *rest);
/* Threads and processes may do these at once. False: it is not there, or not whole, or somebody else's. */
bool cache_get(const CodeCache *c, CodeKey key, Buf *out);
/* What cannot be kept is made again next time. */
void cache_put(CodeCache *c, CodeKey key, const void *at, size_t n);
#endif
