/* api.h: prototypes of what the library exports, from api.def. */
#ifndef API_H
#define API_H
#include "cu.h"

#define API __attribute__((visibility("default")))
#define F(name, symbol, params) API CUresult symbol params;
#include "api.def"
#undef F
#endif
