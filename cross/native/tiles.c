/* The tile registers of x86-64 (AMX), which Linux lets a process use only after it has asked.
 *
 * A process asks once for all of its threads; a child made by fork() has what its parent has. Source: Linux,
 * Documentation/arch/x86/xstate.rst.
 */
#define _GNU_SOURCE
#include "tfb.h"

#if defined(__x86_64__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    ARCH_REQ_XCOMP_PERM = 0x1023, /* arch/x86/include/uapi/asm/prctl.h */
    XFEATURE_XTILE_DATA = 18      /* arch/x86/include/asm/fpu/types.h */
};

int32_t tfb_allow_tiles(void) {
    static _Atomic int allowed;
    if (atomic_load_explicit(&allowed, memory_order_relaxed)) return 0;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)) return TFB_ERROR_TILES;
    atomic_store_explicit(&allowed, 1, memory_order_relaxed);
    return 0;
}
#else
int32_t tfb_allow_tiles(void) {
    return TFB_ERROR_TILES;
}
#endif
