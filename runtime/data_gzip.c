/* data_gzip.c: gzip through zlib. Alone in librtgz.a, so that an executable whose data cannot be compressed needs no
 * zlib.
 *
 * In: a whole gzip file, several members one after another allowed.   Out: its contents.
 * Refuses: broken or truncated streams, wrong check sums, contents above 2^40 bytes. */
#include "host.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define GZIP_PART ((size_t)1 << 30)

static bool
gzip_room(uint8_t **out, size_t used, size_t *room)
{
	uint8_t *more;

	if (used < *room)
		return true;
	more = *room < ((size_t)1 << 40) ? realloc(*out, *room * 2) : NULL;
	if (more) {
		*out = more;
		*room *= 2;
	}
	return more != NULL;
}

/* Inflates all members; returns NULL or what is wrong. */
static const char *
gzip_inflate(z_stream *z, const uint8_t *in, size_t n, uint8_t **out, size_t *used, size_t room)
{
	size_t at = 0;
	int status = Z_OK;

	for (;;) {
		size_t give = n - at < GZIP_PART ? n - at : GZIP_PART, take;

		if (!gzip_room(out, *used, &room))
			return "out of memory for the contents";
		take = room - *used < GZIP_PART ? room - *used : GZIP_PART;
		z->next_in = (Bytef *)(uintptr_t)(in + at);
		z->avail_in = (uInt)give;
		z->next_out = *out + *used;
		z->avail_out = (uInt)take;
		status = inflate(z, Z_NO_FLUSH);
		at += give - z->avail_in;
		*used += take - z->avail_out;
		if (status == Z_STREAM_END) {
			if (at == n)
				return NULL;
			if (inflateReset(z) != Z_OK)
				return "cannot go on to the next member";
			continue;
		}
		if (status != Z_OK && status != Z_BUF_ERROR)
			return z->msg ? z->msg : "broken stream";
		if (at == n && z->avail_out)
			return "truncated stream";
	}
}

bool
rt_gzip_read(const uint8_t *in, size_t n, uint8_t **out, size_t *nout, char *why, size_t why_bytes)
{
	z_stream z = {0};
	size_t room = n * 4 + 64;
	const char *bad;

	*nout = 0;
	*out = malloc(room);
	if (!*out || inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) {
		snprintf(why, why_bytes, "out of memory");
		free(*out);
		return false;
	}
	bad = gzip_inflate(&z, in, n, out, nout, room);
	if (bad) {
		snprintf(why, why_bytes, "%s", bad);
		free(*out);
	}
	inflateEnd(&z);
	return !bad;
}
