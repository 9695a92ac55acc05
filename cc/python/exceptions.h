// Engine Status to Python exceptions: the one bridge.
//
//   InvalidArgument, OutOfRange   ValueError
//   NotFound                      NotFoundError (EngineError, FileNotFoundError)
//   Unimplemented                 NotImplementedError
//   ResourceExhausted             ResourceExhaustedError (EngineError, MemoryError)
//   AlreadyExists                 AlreadyExistsError (EngineError, ValueError)
//   FailedPrecondition            FailedPreconditionError (EngineError)
//   DataLoss                      DataLossError (EngineError)
//   others                        EngineError

#ifndef CC_PYTHON_EXCEPTIONS_H_
#define CC_PYTHON_EXCEPTIONS_H_

#include <pybind11/pybind11.h>

#include "cc/base/status.h"

namespace multitier {

// Adds the exception classes to the module and has ThrowIfError's exceptions raised as them.
void RegisterExceptions(pybind11::module_* module);

// Throws what becomes the Python exception of `status`. Needs no GIL.
void ThrowIfError(const Status& status);

template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return *std::move(result);
}

}  // namespace multitier

#endif  // CC_PYTHON_EXCEPTIONS_H_
