/* Preloaded into a process, it hides the vector instructions beyond a level of x86-64: LEVEL is 2 or 3.

   Linux lets the instruction CPUID fault where the CPU can (arch_prctl(2), ARCH_CPUID_SET): the handler below
   executes it and answers without what is hidden. The setting is each thread's and inherited; exec ends it,
   and the preloaded library begins it again. Bits are named as in Intel's "Software Developer's Manual", volume
   2A, CPUID. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID_SET 0x1012
#define BIT(number) (1u << (number))

static struct sigaction earlier;

static long set_allowed(long allowed) { return syscall(SYS_arch_prctl, ARCH_CPUID_SET, allowed); }

/* Clear what is hidden in the answer {eax, ebx, ecx, edx} to a leaf and its subleaf. */
static void hide(uint32_t leaf, uint32_t subleaf, uint32_t answer[4]) {
    if (leaf == 7 && subleaf == 0) {
        /* AVX-512: F, DQ, IFMA, PF, ER, CD, BW, VL; then VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; then 4VNNIW,
           4FMAPS, VP2INTERSECT, FP16, and AMX's three bits */
        answer[1] &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        answer[2] &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        answer[3] &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(23) | BIT(22) | BIT(24) | BIT(25));
        if (LEVEL < 3) {
            answer[1] &= ~(BIT(3) | BIT(5) | BIT(8)); /* BMI1, AVX2, BMI2 */
            answer[2] &= ~(BIT(9) | BIT(10));         /* VAES, VPCLMULQDQ */
        }
    } else if (leaf == 7 && subleaf == 1) {
        /* AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; then AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX,
           AVX-VNNI-INT16, AVX10 */
        answer[0] &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        answer[3] &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) { /* tiles, AVX10 */
        memset(answer, 0, 4 * sizeof answer[0]);
    } else if (leaf == 1 && LEVEL < 3) {
        answer[2] &= ~(BIT(12) | BIT(28) | BIT(29)); /* FMA, AVX, F16C */
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) { /* not CPUID: as without us */
        sigaction(number, &earlier, NULL);
        return;
    }
    uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX], answer[4];
    set_allowed(1);
    __asm__ volatile("cpuid"
                     : "=a"(answer[0]), "=b"(answer[1]), "=c"(answer[2]), "=d"(answer[3])
                     : "a"(leaf), "c"(subleaf));
    set_allowed(0);
    hide(leaf, subleaf, answer);
    registers[REG_RAX] = answer[0];
    registers[REG_RBX] = answer[1];
    registers[REG_RCX] = answer[2];
    registers[REG_RDX] = answer[3];
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, &earlier);
    if (set_allowed(0) != 0) {
        static const char reason[] = "CPUID does not fault on this CPU, or its hypervisor does not let it\n";
        (void)!write(2, reason, sizeof reason - 1);
        _exit(3);
    }
}
