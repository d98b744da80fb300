/* The clock of `tfb_model_steps`; library.py puts this before the steps. */
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Adds the time since then to what a step has spent; returns the time of now. */
static int64_t lap(int64_t *spent_ns, int64_t since_ns)
{
    int64_t reached_ns = now_ns();

    *spent_ns += reached_ns - since_ns;
    return reached_ns;
}
