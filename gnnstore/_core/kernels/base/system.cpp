#include "kernels/base/system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "kernels/base/errors.h"

// The same on every architecture; C libraries from before Linux 5.1 do not name them.
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#define SYS_io_uring_enter 426
#define SYS_io_uring_register 427
#endif

namespace gnnstore {
namespace {

constexpr std::array<std::pair<const char *, SystemCall>, 15> call_names{{
    {"open", SystemCall::open},
    {"fstat", SystemCall::fstat},
    {"statx", SystemCall::statx},
    {"pread", SystemCall::pread},
    {"pwrite", SystemCall::pwrite},
    {"fallocate", SystemCall::fallocate},
    {"mmap", SystemCall::mmap},
    {"madvise", SystemCall::madvise},
    {"fadvise", SystemCall::fadvise},
    {"renameat2", SystemCall::renameat2},
    {"thread", SystemCall::thread},
    {"io_uring_setup", SystemCall::io_uring_setup},
    {"io_uring_register", SystemCall::io_uring_register},
    {"io_uring_enter", SystemCall::io_uring_enter},
    {"io_uring_read", SystemCall::io_uring_read},
}};

bool can_be_short(SystemCall call) {
    return call == SystemCall::pread || call == SystemCall::pwrite ||
           call == SystemCall::io_uring_read;
}

void check(const Fault &fault) {
    constexpr int max_errno = 4095;  // the kernel's MAX_ERRNO
    const auto refuse = [](const std::string &what) { throw invalid(what); };
    if (fault.skip < 0)
        refuse("skip must not be negative, got " + std::to_string(fault.skip));
    if (fault.times < 1 && fault.times != -1)
        refuse("times must be at least 1, or -1 for all, got " + std::to_string(fault.times));
    if (fault.code < 0 || fault.code > max_errno)
        refuse("errno must be between 0 and 4095, got " + std::to_string(fault.code));
    if (fault.code == 0 && !can_be_short(fault.call))
        refuse("only pread, pwrite and io_uring_read can be cut short; give an errno");
    if (fault.bytes < 0)
        refuse("bytes of a short call must not be negative, got " + std::to_string(fault.bytes));
}

std::atomic<bool> armed{false};
std::atomic<int64_t> num_failed{0};
std::mutex table_mutex;
std::vector<Fault> table;  // skip and times count down

// Whether this call is to fail, and how.
bool is_due(SystemCall call, Fault &due) {
    // Relaxed is enough: a fault is armed and the call is made on one thread, or the work is
    // handed over, which orders them.
    if (!armed.load(std::memory_order_relaxed)) [[likely]]
        return false;
    const std::lock_guard lock(table_mutex);
    bool found = false;
    for (Fault &fault : table) {
        if (fault.call != call) continue;
        if (fault.skip > 0) {
            --fault.skip;
        } else if (!found && fault.times != 0) {
            found = true;
            due = fault;
            if (fault.times > 0) --fault.times;
        }
    }
    if (found) num_failed.fetch_add(1, std::memory_order_relaxed);
    return found;
}

// Sets errno if this call is to fail.
bool fails(SystemCall call) {
    Fault fault;
    if (!is_due(call, fault)) return false;
    errno = fault.code;
    return true;
}

// The result of a read of `got` bytes that is cut short, and ruins what it did not bring.
int64_t cut_short(const Fault &fault, int64_t got, void *out) {
    const int64_t left = std::min(fault.bytes, got);
    if (out != nullptr && left < got)
        std::memset(static_cast<uint8_t *>(out) + left, 0xa5, static_cast<size_t>(got - left));
    return left;
}

}  // namespace

void set_faults(const std::vector<Fault> &faults) {
    for (const Fault &fault : faults) check(fault);
    const std::lock_guard lock(table_mutex);
    table = faults;
    num_failed.store(0, std::memory_order_relaxed);
    armed.store(!faults.empty(), std::memory_order_relaxed);
}

int64_t num_faults() { return num_failed.load(std::memory_order_relaxed); }

SystemCall parse_system_call(const std::string &name) {
    for (const auto &[known, call] : call_names)
        if (name == known) return call;
    std::string names;
    for (const auto &[known, call] : call_names)
        names += (names.empty() ? "" : ", ") + std::string(known);
    throw invalid("a call must be one of ", names, ", got '", name, "'");
}

namespace sys {

int open(const char *path, int flags, mode_t mode) {
    return fails(SystemCall::open) ? -1 : ::open(path, flags, mode);
}

int fstat(int descriptor, struct stat *status) {
    return fails(SystemCall::fstat) ? -1 : ::fstat(descriptor, status);
}

// By number: see StatxFacts.
int statx(int descriptor, unsigned mask, StatxFacts *facts) {
    constexpr int at_empty_path = 0x1000;  // AT_EMPTY_PATH: the descriptor itself
    if (fails(SystemCall::statx)) return -1;
    return static_cast<int>(::syscall(SYS_statx, descriptor, "", at_empty_path, mask, facts));
}

ssize_t pread(int descriptor, void *out, size_t num_bytes, int64_t offset) {
    Fault fault;
    if (!is_due(SystemCall::pread, fault)) return ::pread(descriptor, out, num_bytes, offset);
    if (fault.code != 0) {
        errno = fault.code;
        return -1;
    }
    // Asked for in full, since a direct read may not ask for less.
    const ssize_t got = ::pread(descriptor, out, num_bytes, offset);
    return got < 0 ? got : static_cast<ssize_t>(cut_short(fault, got, out));
}

ssize_t pwrite(int descriptor, const void *data, size_t num_bytes, int64_t offset) {
    Fault fault;
    if (!is_due(SystemCall::pwrite, fault)) return ::pwrite(descriptor, data, num_bytes, offset);
    if (fault.code != 0) {
        errno = fault.code;
        return -1;
    }
    // The bytes cut off are not written, so that a caller that takes a short write for a whole one
    // leaves a hole. A direct write may not be cut within a block: less is written then.
    const auto left = std::min(num_bytes, static_cast<size_t>(fault.bytes));
    constexpr size_t block_bytes = 4096;
    for (const size_t part : {left, left / block_bytes * block_bytes})
        if (part > 0 && ::pwrite(descriptor, data, part, offset) >= 0) break;
    return static_cast<ssize_t>(left);
}

int fallocate(int descriptor, int64_t num_bytes) {
    return fails(SystemCall::fallocate) ? -1 : ::fallocate(descriptor, 0, 0, num_bytes);
}

void *mmap(void *place, size_t num_bytes, int protection, int flags, int descriptor,
           int64_t offset) {
    if (fails(SystemCall::mmap)) return MAP_FAILED;
    return ::mmap(place, num_bytes, protection, flags, descriptor, offset);
}

int madvise(void *place, size_t num_bytes, int advice) {
    return fails(SystemCall::madvise) ? -1 : ::madvise(place, num_bytes, advice);
}

int fadvise(int descriptor, int64_t offset, int64_t num_bytes, int advice) {
    Fault fault;  // posix_fadvise returns its error and leaves errno alone
    if (is_due(SystemCall::fadvise, fault)) return fault.code;
    return ::posix_fadvise(descriptor, offset, num_bytes, advice);
}

// By number: glibc has had a wrapper since 2.28, musl has none.
int renameat2(const char *source, const char *target, unsigned flags) {
    if (fails(SystemCall::renameat2)) return -1;
    return static_cast<int>(
        ::syscall(SYS_renameat2, AT_FDCWD, source, AT_FDCWD, target, flags));
}

void check_thread_start() {
    Fault fault;
    if (is_due(SystemCall::thread, fault))
        throw std::system_error(fault.code, std::generic_category(), "cannot start a thread");
}

int io_uring_setup(unsigned entries, io_uring_params *params) {
    if (fails(SystemCall::io_uring_setup)) return -1;
    return static_cast<int>(::syscall(SYS_io_uring_setup, entries, params));
}

int io_uring_register(int ring, unsigned operation, const void *argument, unsigned count) {
    if (fails(SystemCall::io_uring_register)) return -1;
    return static_cast<int>(::syscall(SYS_io_uring_register, ring, operation, argument, count));
}

int io_uring_enter(int ring, unsigned to_submit, unsigned min_complete, unsigned flags) {
    if (fails(SystemCall::io_uring_enter)) return -1;
    return static_cast<int>(
        ::syscall(SYS_io_uring_enter, ring, to_submit, min_complete, flags, nullptr, 0));
}

int32_t io_uring_read(int32_t result, void *out) {
    Fault fault;
    if (!is_due(SystemCall::io_uring_read, fault)) return result;
    if (fault.code != 0) return -fault.code;
    return result < 0 ? result : static_cast<int32_t>(cut_short(fault, result, out));
}

}  // namespace sys
}  // namespace gnnstore
