// Lets other Python threads run while a kernel works.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace gnnstore {

// Gives up the GIL and takes it back at the end of the scope. Unlike nanobind's, it survives
// the end of the interpreter: until 3.14, Python ends a daemon thread that asks for the GIL
// by pthread_exit: its unwinding may not leave a destructor and would abort the process. Such
// a thread waits here for the process to end instead, as it does in Python 3.14.
class GilRelease {
public:
    GilRelease() : state_(PyEval_SaveThread()) {}
    ~GilRelease() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {  // nothing but such an unwinding
            for (;;) ::pause();
        }
    }
    GilRelease(const GilRelease &) = delete;
    GilRelease &operator=(const GilRelease &) = delete;

private:
    PyThreadState *state_;
};

template <class Work>
auto without_gil(const Work &work) {
    const GilRelease release;
    return work();
}

}  // namespace gnnstore
