/* chosen.c: a part of run.c: which lines of a case file run in which variants where TEST_SOME is set, as the suite does
 * without --long. Each line runs plain; of its other variants the first line of each kind (operator, type of its first
 * operand, attribute wide, for kernels alone or not, variant) and every third behind it, so that no kind is left out. A
 * line counts once it has come to a kernel. */
static bool chosen_ran;
static struct { uint64_t kind[4096]; uint32_t lines[4096]; } chosen, chosen_before;

/* How many lines of this one's kind have been before it. */
static uint32_t *
chosen_lines(const char *line, const char *variant)
{
	char kind[200];
	size_t bracket = strcspn(line, "[");

	snprintf(kind, sizeof kind, "%.*s %s %d %d", (int)(bracket < 100 ? bracket : 100), line, variant,
	         strstr(line, "wide=true") != NULL, line_says(line, "kernel"));
	uint64_t hash = hash_bytes(HASH_START, kind, strlen(kind)) | 1;
	uint32_t at = (uint32_t)(hash >> 20) % 4096;

	for (uint32_t n = 0; chosen.kind[at] && chosen.kind[at] != hash; n++, at = (at + 1) % 4096)
		if (n == 4096)
			die("more kinds of cases than there is room for");
	chosen.kind[at] = hash;
	return &chosen.lines[at];
}
