// The macro that has code for x86-64 compiled beside the portable code. GNNSTORE_PORTABLE leaves it
// out, so that the code for other processors can be tested on this one.
#pragma once

#if defined(__x86_64__) && !defined(GNNSTORE_PORTABLE)
#define GNNSTORE_X86_64 1
#include <immintrin.h>
#endif
