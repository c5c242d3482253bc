// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "perf/backend.hpp"
#include "perf/library.hpp"
#include "perf/options.hpp"

namespace oriel::perf {

/// Returns the bytes from one buffer set to the next: the data, rounded up to whole pages
/// (NCCL_WIN_REQUIRED_ALIGNMENT), and one guard page. Nobody may write behind the data.
std::size_t set_stride(std::size_t bytes);

/// Send and receive memory of one rank: one stretch each, cut into buffer sets. A stretch that is a
/// window comes from ncclMemAlloc and is one window. Call release() before the communicator is
/// destroyed; the destructor releases nothing.
class BufferSets {
 public:
  BufferSets() = default;
  /// Allocates and registers both stretches; collective if one becomes a window.
  /// `bytes`: size of each stretch, set_stride() x sets.
  static Result<BufferSets> create(const Library& library, Backend& backend, ncclComm_t comm,
                                   Registration registration, std::size_t bytes);
  /// Deregisters each stretch, then frees the memory that came from ncclMemAlloc.
  Status release(const Library& library, ncclComm_t comm);

  /// Cuts the stretches into sets of `bytes`.
  void cut(std::size_t bytes) { stride_ = set_stride(bytes); }
  void* send(int set) const { return at(send_, set); }
  void* receive(int set) const { return at(receive_, set); }
  std::size_t stride() const { return stride_; }

 private:
  struct Stretch {
    void* memory = nullptr;
    bool from_library = false;
    ncclWindow_t window = nullptr;
    void* handle = nullptr;  // from ncclCommRegister
  };
  static Status make(const Library& library, Backend& backend, ncclComm_t comm, bool window,
                     bool local, std::size_t bytes, Stretch& stretch);
  static Status drop(const Library& library, ncclComm_t comm, Stretch& stretch);
  void* at(const Stretch& stretch, int set) const {
    return static_cast<std::byte*>(stretch.memory) + static_cast<std::size_t>(set) * stride_;
  }

  Stretch send_;
  Stretch receive_;
  std::size_t stride_ = 0;
};

}  // namespace oriel::perf
