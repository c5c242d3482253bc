// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "support/cuda/fake_cuda.hpp"

// Internals of FakeCuda, for its own source files.
namespace oriel::test {

/// Physical memory of one cuMemCreate; lives while a handle or a mapping refers to it.
struct Physical {
  int fd = -1;
  std::size_t bytes = 0;
  CUmemAllocationProp properties{};
  ~Physical() {
    if (fd >= 0) ::close(fd);
  }
};
using PhysicalRef = std::shared_ptr<Physical>;

struct Mapped {
  std::size_t bytes;
  PhysicalRef physical;
  bool accessible;
};

struct Buffer {
  std::size_t bytes;
  bool on_host;
  bool registered;  // registered, so not allocated by the driver
};

/// Operation that a stream has to run.
struct Copy {
  enum class Kind { copy, set, write };
  Kind kind;
  void* to;
  const void* from;  // only for a copy
  std::size_t bytes;
  std::uint64_t value;  // only for set and write
};

struct FakeCuda::State {
  Options options;
  CudaTable table;
  mutable std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, std::pair<PhysicalRef, int>> handles;
  CUmemGenericAllocationHandle next_handle = 0x1000;
  std::map<std::uintptr_t, std::size_t> reservations;
  std::map<std::uintptr_t, Mapped> mappings;
  std::map<std::uintptr_t, Buffer> buffers;
  std::map<CUstream, std::vector<Copy>> streams;
  std::vector<Copy> orphans;  // pending work of destroyed streams, which never runs
  std::map<CUevent, CUstream> events;
  std::vector<int> contexts;  // reference counts, by device
  std::uintptr_t next_object = 0x10;
  int foreign_captures = 0;
  bool devices_full = false;
  CUresult streams_status = CUDA_SUCCESS;
  int copies = 0;
  int launches = 0;
  std::vector<std::string> violations;

  CUresult violate(std::string what, CUresult status = CUDA_ERROR_INVALID_VALUE) {
    violations.push_back(std::move(what));
    return status;
  }
};

extern FakeCuda::State* fake;
extern thread_local std::vector<CUcontext> context_stack;
extern thread_local CUstreamCaptureMode thread_mode;

inline bool has_device(int device) {
  return device >= 0 && device < fake->options.devices;
}

/// Returns the device of the current context, or -1 if there is none.
int current_device();

/// Notes a violation and returns true if `call` would break the other thread's capture. Threads in
/// relaxed mode may make any call.
bool breaks_capture(const char* call);

/// Returns the entry of `map` whose range [begin, begin + bytes) holds `address`.
template <typename Map>
auto containing(Map& map, std::uintptr_t address) {
  auto found = map.upper_bound(address);
  if (found == map.begin()) return map.end();
  --found;
  std::size_t bytes = 0;
  if constexpr (std::is_integral_v<typename Map::mapped_type>) {
    bytes = found->second;
  } else {
    bytes = found->second.bytes;
  }
  return address - found->first < bytes ? found : map.end();
}

/// Returns true if a pending operation of a stream reads or writes [address, address + bytes). The
/// caller holds the mutex.
bool yet_to_copy(std::uintptr_t address, std::size_t bytes);

/// Puts plain allocations, streams and events into the table.
void add_streams(CudaTable& table);
/// Puts kernel launches and event calls into the table.
void add_launches(CudaTable& table);
/// Puts queries of devices, contexts and pointers into the table.
void add_queries(CudaTable& table);

}  // namespace oriel::test
