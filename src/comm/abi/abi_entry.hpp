// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "nccl.h"
#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "comm/abi/api_entry.hpp"

/// Building blocks for every entry of NCCL's C interface: its three names, and the guard around its
/// call. For the sources of comm/abi that define entries.
namespace oriel::comm {

/// Returns the C result for an error code.
ncclResult_t to_nccl(ErrorCode code);

/// Selects whether a failed call inside a group cancels the whole group.
enum class InGroup { is_local, cancels };

/// Keeps the error of `call` for ncclGetLastError, and for the thread's group if `in_group` is
/// `cancels`. Returns its result code.
ncclResult_t report(Error error, const char* call, InGroup in_group);

/// Disables pthread_cancel() during a call. Cancellation unwinds a thread like an exception, which
/// must not pass through C. It would also leave the other ranks without this rank.
class NotCancelled {
 public:
  NotCancelled() noexcept { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// Runs `body`, keeps its error for ncclGetLastError, and lets no exception into C. If memory runs
/// out, aborts `comm`, if given, because its peers have entered the same call.
template <class Body>
ncclResult_t guard(const char* call, const Body& body, ncclComm_t comm = nullptr,
                   InGroup in_group = InGroup::is_local) noexcept {
  const NotCancelled whole_call;
  try {
    try {
      Status status = body();
      return status.ok() ? ncclSuccess : report(std::move(status).error(), call, in_group);
    } catch (const std::bad_alloc&) {
      end_without_memory(comm);
      return report(Error(ErrorCode::system, "out of memory"), call, in_group);
    } catch (const std::exception& exception) {
      return report(Error(ErrorCode::internal, exception.what()), call, in_group);
    }
  } catch (...) {  // there is no memory for a message either
    return ncclSystemError;
  }
}

/// Runs `body` like guard(), for a call that belongs to the thread's open group.
template <class Body>
ncclResult_t guard_in_group(const char* call, const Body& body,
                            ncclComm_t comm = nullptr) noexcept {
  return guard(call, body, comm, InGroup::cancels);
}

/// Runs `body` like guard_in_group(). Returns ncclInProgress if the call goes on in the background.
template <class Body>
ncclResult_t guard_progress(const char* call, const Body& body,
                            ncclComm_t comm = nullptr) noexcept {
  bool in_progress = false;
  const ncclResult_t result = guard_in_group(
      call, [&] { return body(in_progress); }, comm);
  return result == ncclSuccess && in_progress ? ncclInProgress : result;
}

/// Returns invalid_argument if the argument `name` is a null pointer.
template <class T>
Status require(const T* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return Error(ErrorCode::invalid_argument, fmt::format("{} is null", name))
      .with_hint("pass a valid pointer: this argument is not optional");
}

/// Returns the type for a C enumerator; invalid_argument if there is none.
Result<DataType> read_type(ncclDataType_t type);

}  // namespace oriel::comm

/// Short name of oriel::comm for the C entries, which are defined outside of any namespace.
namespace api = oriel::comm;

// Each entry is defined under its pnccl name. The nccl name is an alias, which a profiler may
// replace. The oriel_nccl name is an alias to which libnccl.so.2 forwards; nobody replaces it.
#if defined(__GNUC__) && !defined(__clang__)
// gcc detects that the targets do not throw, and warns that the aliases do not say so.
#pragma GCC diagnostic ignored "-Wmissing-attributes"
#endif
#define ORIEL_VISIBLE gnu::visibility("default")
#define ORIEL_ENTRY(result, name, ...)                                                  \
  extern "C" [[ORIEL_VISIBLE, gnu::alias("p" #name)]] result name(__VA_ARGS__);         \
  extern "C" [[ORIEL_VISIBLE, gnu::alias("p" #name)]] result oriel_##name(__VA_ARGS__); \
  extern "C" [[ORIEL_VISIBLE]] result p##name(__VA_ARGS__)
