/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/signals.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <unistd.h>

static bool is_ignored(int signal_number)
{
    struct sigaction current;
    return sigaction(signal_number, NULL, &current) == 0 && current.sa_handler == SIG_IGN;
}

static void those_that_end(sigset_t *set_out)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(set_out);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!is_ignored(numbers[i])) {
            sigaddset(set_out, numbers[i]);
        }
    }
}

void gr_signals_hold(sigset_t *before_out)
{
    sigset_t set;
    those_that_end(&set);
    (void)sigprocmask(SIG_BLOCK, &set, before_out);
}

int gr_signals_open(void)
{
    sigset_t set;
    those_that_end(&set);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int gr_signals_take(int signal_fd)
{
    struct signalfd_siginfo info;
    return read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

int gr_signals_waiting(void)
{
    sigset_t pending, set;
    those_that_end(&set);
    (void)sigpending(&pending);
    for (int number = 1; number < NSIG; number++) {
        if (sigismember(&set, number) == 1 && sigismember(&pending, number) == 1) {
            return number;
        }
    }
    return 0;
}

const char *gr_signals_name(int signal_number)
{
    return signal_number == SIGINT ? "SIGINT" : signal_number == SIGTERM ? "SIGTERM" : "SIGHUP";
}

void gr_signals_sleep(int fd, int timeout_ms)
{
    struct pollfd at[] = {{.fd = fd, .events = POLLIN},
                          {.fd = gr_signals_open(), .events = POLLIN}};
    (void)poll(at, sizeof at / sizeof at[0], timeout_ms);
    if (at[1].fd >= 0) {
        close(at[1].fd);
    }
}
