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

// The insides of FakeCuda, for its own source files.
namespace oriel::test {

/// The physical memory of one cuMemCreate; lives while a handle or a mapping is left.
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
  bool registered;  // not of the driver's own
};

/// What a stream has to do.
struct Copy {
  enum class Kind { copy, set, write };
  Kind kind;
  void* to;
  const void* from;  // of a copy
  std::size_t bytes;
  std::uint64_t value;  // to set, or to write: a word
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
  std::vector<Copy> orphans;  // of streams that were destroyed before they ran: nobody waits
  std::map<CUevent, CUstream> events;
  std::vector<int> contexts;  // references, by device
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

/// The device of the current context, or -1.
int current_device();

/// What a thread in global or thread-local mode must not call while a capture is under way.
bool breaks_capture(const char* call);

/// The entry of `map` whose [begin, begin + bytes) holds `address`.
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

/// Whether a copy that has not been waited for reads or writes [address, address + bytes). Under
/// the mutex.
bool yet_to_copy(std::uintptr_t address, std::size_t bytes);

/// Puts plain allocations, streams and events into the table.
void add_streams(CudaTable& table);
/// Puts launches and their order into the table.
void add_launches(CudaTable& table);
/// Puts questions about devices, contexts and pointers into the table.
void add_queries(CudaTable& table);

}  // namespace oriel::test
