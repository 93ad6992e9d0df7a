// GCC 12 believes that loading a tile configuration reads 8 of its 64 bytes, and may drop the stores that fill
// the rest; the instruction then faults. Handing the address to an opaque statement first keeps them all.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
static inline const void *fully_stored(const void *configuration) {
    __asm__ volatile("" : "+r"(configuration) : : "memory");
    return configuration;
}
#define _tile_loadconfig(configuration) (_tile_loadconfig)(fully_stored(configuration))
#endif
