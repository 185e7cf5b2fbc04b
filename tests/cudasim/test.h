/* test.h: what the tests of the simulated device share: the library's calls, NVRTC if it is there, counting. */
#ifndef TEST_H
#define TEST_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "api.h"

/* The calls by their exported names, through the library that the loader finds. */
typedef struct Api {
#define F(base, symbol, params) CUresult (*symbol) params;
#include "api.def"
#undef F
} Api;
extern Api cu;

typedef struct Tally { int passed, failed, skipped; uint64_t random; const char *only; } Tally;
extern Tally tally;

bool test_open(void);                        /* the library; false and a message if it is not there */
void test_context(void);                     /* cuInit, device 0, its context */
void check(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t random32(void);
char *test_file(const char *name);           /* the text of a file, to be freed; NULL if there is none */
char *test_source(const char *name);         /* likewise, of the folder cu/ beside the tests ($SIM_TESTS) */

/* PTX of CUDA C for compute_XX, to be freed; NULL if there is no NVRTC or the text does not compile. */
char *test_nvrtc(const char *source, const char *arch);
bool test_has_nvrtc(void);

CUmodule test_module(const char *ptx);       /* NULL after a failed check */
CUfunction test_function(CUmodule m, const char *name);
CUdeviceptr test_upload(const void *from, size_t bytes);
CUdeviceptr test_room(size_t bytes);
void test_download(void *to, CUdeviceptr from, size_t bytes);
CUresult test_launch(CUfunction f, unsigned grid, unsigned block, unsigned dynamic, void **params); /* and waits */

void test_ops(void);
void test_convert(void);
void test_kernels(void);
void test_matrix(void);
void test_streams(void);
void test_graphs(void);
void test_memory(void);
void test_bulk(void);
void test_speed(void);
#endif
