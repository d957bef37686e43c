// Every system call of the core that reads, writes or maps a file, with a point before it where a
// test can make it fail. An error path that is never taken is an error path that does not
// work, and a disk that fails on demand is hard to come by.
//
// A disarmed point costs one relaxed load of a flag.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Declared only, so that parallel.h and with it most kernels need no kernel header.
struct io_uring_params;
struct stat;

namespace gnnstore {

enum class SystemCall {
    open,
    fstat,
    statx,
    pread,
    pwrite,
    fallocate,
    mmap,
    madvise,
    fadvise,
    renameat2,
    thread,  // starting one
    io_uring_setup,
    io_uring_register,
    io_uring_enter,
    io_uring_read,  // not a call: the result in a completion
};

// A fault that is injected into some calls of one kind.
struct Fault {
    SystemCall call;
    int64_t skip;   // calls that are let through first
    int64_t times;  // calls that fail after that; -1: all
    int code;       // an errno value; 0: the read or write is cut short instead
    int64_t bytes;  // bytes of a short one; 0: as at the end of the file
};

// Faults that are in force from now on, in place of those before; empty: none. Each counts
// all calls of its kind; where several are due, the first does its work and the others wait
// for the next call. Throws std::invalid_argument for one that cannot happen.
void set_faults(const std::vector<Fault> &faults);
// How many calls have failed so since the latest set_faults.
int64_t num_faults();
// The name as in the enumeration above; throws std::invalid_argument for an unknown one.
SystemCall parse_system_call(const std::string &name);

// The beginning of the kernel's struct statx, whose layout is fixed. The C library's lags
// behind: stx_dio_* came with Linux 6.1, and musl had none of it before 1.2.5.
struct StatxFacts {
    uint32_t mask;  // what of the following the kernel has filled in
    uint32_t others[37];
    uint32_t dio_memory_alignment;
    uint32_t dio_offset_alignment;  // 0: no direct reads of this file
    uint32_t spare[24];
};
static_assert(sizeof(StatxFacts) == 256);
inline constexpr unsigned statx_dioalign = 0x2000;  // STATX_DIOALIGN

// The calls, with the results of their namesakes: -1 and errno, where those return that.
namespace sys {

int open(const char *path, int flags, mode_t mode = 0);  // of a file that it makes
int fstat(int descriptor, struct stat *status);
int statx(int descriptor, unsigned mask, StatxFacts *facts);  // of an open file
ssize_t pread(int descriptor, void *out, size_t num_bytes, int64_t offset);
ssize_t pwrite(int descriptor, const void *data, size_t num_bytes, int64_t offset);
int fallocate(int descriptor, int64_t num_bytes);  // from the file's beginning
void *mmap(void *place, size_t num_bytes, int protection, int flags, int descriptor,
           int64_t offset);
int madvise(void *place, size_t num_bytes, int advice);
int fadvise(int descriptor, int64_t offset, int64_t num_bytes, int advice);
int renameat2(const char *source, const char *target, unsigned flags);
void check_thread_start();  // throws std::system_error as std::thread does
int io_uring_setup(unsigned entries, io_uring_params *params);
int io_uring_register(int ring, unsigned operation, const void *argument, unsigned count);
int io_uring_enter(int ring, unsigned to_submit, unsigned min_complete, unsigned flags);
// The result of a finished read: what the kernel said, unless a fault says otherwise. `out`,
// where the read went, if given: what a short read would not have brought is overwritten, as
// in pread, lest a caller that takes a short read for a whole one find the right bytes there.
int32_t io_uring_read(int32_t result, void *out = nullptr);

}  // namespace sys
}  // namespace gnnstore
