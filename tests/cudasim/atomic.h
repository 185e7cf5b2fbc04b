/* atomic.h: numbers of the atomic operations, in the order that decode_memory.c names them. */
#ifndef ATOMIC_H
#define ATOMIC_H
enum {
	ATOMIC_ADD, ATOMIC_MIN, ATOMIC_MAX, ATOMIC_INC, ATOMIC_DEC, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_EXCH,
	ATOMIC_CAS,
};
#endif
