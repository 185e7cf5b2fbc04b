/* fuzz.h: what a fuzz target of a reader is. Built with libFuzzer (-fsanitize=fuzzer) it needs nothing else; linked
 * with fuzz_main.c it is a short run with a fixed seed for the suite. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
/* Valid files to start from: number k into out, its length returned; 0: no more. */
size_t fuzz_seed(int k, uint8_t *out, size_t room);
#endif
