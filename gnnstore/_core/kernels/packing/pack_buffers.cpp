#include "kernels/packing/pack_buffers.h"

#include <cerrno>
#include <system_error>

#include "kernels/base/errors.h"
#include "kernels/base/system.h"

namespace gnnstore {

void SharedFailure::set() {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::current_exception();
}

bool SharedFailure::has_happened() const {
    const std::lock_guard lock(mutex_);
    return first_ != nullptr;
}

void SharedFailure::rethrow() const {
    const std::lock_guard lock(mutex_);
    if (first_) std::rethrow_exception(first_);
}

PackBuffers::PackBuffers(int64_t num_buffers, int64_t buffer_bytes, int num_threads,
                         SharedFailure &failure)
    : buffer_bytes_(buffer_bytes),
      memory_(checked_multiply(num_buffers, buffer_bytes, "the buffers")),
      failure_(failure) {
    // The last one first: what is handed out first is what was just written.
    for (int64_t i = num_buffers; i > 0; --i) free_.push_back(memory_.data() + (i - 1) * buffer_bytes);
    try {
        for (int i = 0; i < num_threads; ++i) {
            sys::check_thread_start();
            threads_.emplace_back([this] { run_writer(); });
        }
    } catch (const std::system_error &error) {
        if (threads_.empty())
            throw IoError(EAGAIN, std::string("cannot start a thread that writes: ") + error.what(),
                          "");
    }
}

PackBuffers::~PackBuffers() {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    has_task_.notify_all();
}

uint8_t *PackBuffers::take() {
    std::unique_lock lock(mutex_);
    has_buffer_.wait(lock, [this] { return !free_.empty() || is_given_up_; });
    if (is_given_up_) throw GivenUp();
    uint8_t *const buffer = free_.back();
    free_.pop_back();
    return buffer;
}

void PackBuffers::write(uint8_t *buffer, int64_t num_bytes, const PackFile &file,
                        int64_t offset) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({buffer, num_bytes, &file, offset});
    has_task_.notify_one();
}

void PackBuffers::finish() {
    std::unique_lock lock(mutex_);
    has_buffer_.wait(lock, [this] {
        return is_given_up_ || (tasks_.empty() && num_busy_ == 0);
    });
}

void PackBuffers::give_up() {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    tasks_.clear();
    has_buffer_.notify_all();
}

void PackBuffers::run_writer() {
    std::unique_lock lock(mutex_);
    for (;;) {
        has_task_.wait(lock, [this] { return !tasks_.empty() || is_over_; });
        if (tasks_.empty()) return;
        const Task task = tasks_.front();
        tasks_.pop_front();
        ++num_busy_;
        lock.unlock();
        bool is_written = true;
        try {
            task.file->write(task.buffer, task.num_bytes, task.offset);
        } catch (...) {
            failure_.set();
            is_written = false;
        }
        lock.lock();
        --num_busy_;
        if (!is_written) {
            is_given_up_ = true;
            tasks_.clear();
        }
        ++num_writes_;
        bytes_written_ += task.num_bytes;
        free_.push_back(task.buffer);
        has_buffer_.notify_all();
    }
}

}  // namespace gnnstore
