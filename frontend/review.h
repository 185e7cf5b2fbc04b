/* review.h: what the two files of `review` share: measurements and how they are shown. Private to frontend/. */
#ifndef FRONTEND_REVIEW_H
#define FRONTEND_REVIEW_H
#include "../ir/base.h"
#include "../runtime/json.h"

typedef struct Measurement {
	const char *set[8]; /* NAME=VALUE: constants of the model; NULL behind the last */
	const char *file, *model, *mode, *precision, *batch, *data;
	const Json *o; const char *text; /* what bench printed; NULL: error says why */
	const char *error;
	bool cut;                        /* fewer steps than the protocol's, as they would have taken too long */
} Measurement;
typedef struct Review {
	VEC(Measurement) row;
	const char *cpu, *device, *driver; /* device, driver: NULL where there is none */
	long threads;
	double memory, peak;               /* bytes; FLOP/s measured, 0 */
} Review;

/* review_show.c */
double review_free(void);                /* bytes that the system could give */
void review_machine(Arena *a, Review *r);
void review_head(void);
void review_row(const Measurement *m);
void review_end(const Review *r);        /* the machine; mixed beside f32 */
void review_json(const Review *r);
void review_html(FILE *f, const Review *r);
#endif
