// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/buffers.hpp"

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"

namespace oriel::perf {
namespace {

constexpr std::size_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;

Error lacks(const Library& library, const char* function) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} has no {}, which this registration needs", library.path, function))
      .with_hint("--register none, or --against-register none for the opponent");
}

}  // namespace

std::size_t set_stride(std::size_t bytes) {
  return round_up(bytes, kPage) + kPage;
}

Result<BufferSets> BufferSets::create(const Library& library, Backend& backend, ncclComm_t comm,
                                      Registration registration, std::size_t bytes) {
  const bool local = registration == Registration::local;
  const bool both = registration == Registration::both;
  const bool in = both || registration == Registration::in;
  const bool out = both || registration == Registration::out;
  BufferSets sets;
  ORIEL_CHECK(make(library, backend, comm, in, local, bytes, sets.send_));
  ORIEL_CHECK(make(library, backend, comm, out, local, bytes, sets.receive_));
  return sets;
}

Status BufferSets::make(const Library& library, Backend& backend, ncclComm_t comm, bool window,
                        bool local, std::size_t bytes, Stretch& stretch) {
  if (!window) {
    ORIEL_TRY(stretch.memory, backend.allocate(bytes));
    if (!local) return {};
    if (!library.comm_register || !library.comm_deregister)
      return lacks(library, "ncclCommRegister");
    return library.check(library.comm_register(comm, stretch.memory, bytes, &stretch.handle),
                         "ncclCommRegister", comm);
  }
  if (!library.mem_alloc || !library.mem_free) return lacks(library, "ncclMemAlloc");
  if (!library.window_register || !library.window_deregister)
    return lacks(library, "ncclCommWindowRegister");
  ORIEL_CHECK(library.check(library.mem_alloc(&stretch.memory, bytes), "ncclMemAlloc"));
  stretch.from_library = true;
  ORIEL_CHECK(library.check(library.window_register(comm, stretch.memory, bytes, &stretch.window,
                                                    NCCL_WIN_COLL_SYMMETRIC),
                            "ncclCommWindowRegister", comm));
  // Touches all pages, so that no page fault is timed.
  return backend.set_bytes(stretch.memory, 0, bytes);
}

Status BufferSets::release(const Library& library, ncclComm_t comm) {
  ORIEL_CHECK(drop(library, comm, send_));
  return drop(library, comm, receive_);
}

Status BufferSets::drop(const Library& library, ncclComm_t comm, Stretch& stretch) {
  if (stretch.window != nullptr)
    ORIEL_CHECK(library.check(library.window_deregister(comm, stretch.window),
                              "ncclCommWindowDeregister", comm));
  if (stretch.handle != nullptr)
    ORIEL_CHECK(
        library.check(library.comm_deregister(comm, stretch.handle), "ncclCommDeregister", comm));
  if (stretch.from_library)
    ORIEL_CHECK(library.check(library.mem_free(stretch.memory), "ncclMemFree"));
  stretch = {};
  return {};
}

}  // namespace oriel::perf
