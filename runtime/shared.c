/* shared.c: what shards of a batch exchange, of one shard alone: a copy. With several, the host joins the values in the
 * kernel's place (joins.c). */
#include "rt.h"

#include <string.h>

void
rt_shared(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtShared *p = spec;

	(void)scratch;
	for (int64_t k = 0; t0 < t1 && k < p->pairs; k++)
		if (buf[p->pairs + k])
			memcpy(buf[p->pairs + k], buf[k], (size_t)p->bytes);
}
