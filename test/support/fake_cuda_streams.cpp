// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "support/fake_cuda_state.hpp"

namespace oriel::test {
namespace {

using Lock = std::lock_guard<std::mutex>;

CUresult new_buffer(std::uintptr_t* out, std::size_t bytes, bool on_host) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemAlloc")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes == 0) return fake->violate("an allocation of 0 bytes");
  void* raw = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (raw == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<std::uintptr_t>(raw);
  fake->buffers.emplace(*out, Buffer{bytes, on_host});
  return CUDA_SUCCESS;
}

CUresult free_buffer(std::uintptr_t address, bool on_host) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemFree")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = fake->buffers.find(address);
  if (found == fake->buffers.end() || found->second.on_host != on_host) {
    return fake->violate("memory was freed that was not allocated so");
  }
  if (yet_to_copy(address, found->second.bytes)) {
    return fake->violate("memory was freed that a stream is yet to copy");
  }
  fake->buffers.erase(found);
  std::free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}

CUresult mem_alloc(CUdeviceptr* out, std::size_t bytes) {
  std::uintptr_t address = 0;
  const CUresult status = new_buffer(&address, bytes, false);
  *out = address;
  return status;
}
CUresult mem_free(CUdeviceptr address) {
  return free_buffer(address, false);
}

CUresult host_alloc(void** out, std::size_t bytes, unsigned) {
  std::uintptr_t address = 0;
  const CUresult status = new_buffer(&address, bytes, true);
  *out = reinterpret_cast<void*>(address);
  return status;
}
CUresult free_host(void* address) {
  return free_buffer(reinterpret_cast<std::uintptr_t>(address), true);
}

CUresult host_pointer(CUdeviceptr* out, void* address, unsigned) {
  *out = reinterpret_cast<std::uintptr_t>(address);
  return CUDA_SUCCESS;
}

CUresult stream_create(CUstream* stream, unsigned flags) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuStreamCreate")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CU_STREAM_NON_BLOCKING) {
    return fake->violate("a stream of ours waits for the application's default stream");
  }
  *stream = reinterpret_cast<CUstream>(fake->next_object++);
  fake->streams.emplace(*stream, std::vector<Copy>());
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream stream) {
  const Lock lock(fake->mutex);
  const auto found = fake->streams.find(stream);
  if (found == fake->streams.end()) return fake->violate("a stream was destroyed twice");
  // The driver lets them run on.
  fake->orphans.insert(fake->orphans.end(), found->second.begin(), found->second.end());
  fake->streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult enqueue(CUdeviceptr to, const void* from, std::size_t bytes, unsigned value,
                 CUstream stream) {
  const Lock lock(fake->mutex);
  const auto found = fake->streams.find(stream);
  if (found == fake->streams.end()) return fake->violate("a copy on a stream that does not exist");
  const auto buffer = containing(fake->buffers, to);
  if (buffer == fake->buffers.end() || bytes > buffer->first + buffer->second.bytes - to) {
    const auto mapped = containing(fake->mappings, to);
    if (mapped == fake->mappings.end() || !mapped->second.accessible ||
        bytes > mapped->first + mapped->second.bytes - to) {
      return fake->violate("a copy to memory that is not there");
    }
  }
  found->second.push_back({reinterpret_cast<void*>(to), from, bytes, value});
  return CUDA_SUCCESS;
}

CUresult copy_h_to_d(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return enqueue(to, from, bytes, 0, stream);
}
CUresult memset_d32(CUdeviceptr to, unsigned value, std::size_t words, CUstream stream) {
  return enqueue(to, nullptr, words * 4, value, stream);
}

/// What the stream has to copy, if it can. Under the mutex.
CUresult run_copies(CUstream stream) {
  const auto found = fake->streams.find(stream);
  if (found == fake->streams.end()) return fake->violate("a stream was waited for after its end");
  const bool sets = std::any_of(found->second.begin(), found->second.end(),
                                [](const Copy& copy) { return copy.from == nullptr; });
  if (fake->devices_full && sets) return CUDA_ERROR_NOT_READY;
  for (const Copy& copy : found->second) {
    ++fake->copies;
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::fill_n(static_cast<unsigned*>(copy.to), copy.bytes / 4, copy.value);
    }
  }
  found->second.clear();
  return CUDA_SUCCESS;
}

CUresult query(CUstream stream) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuStreamQuery")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return run_copies(stream);
}

CUresult synchronize(CUstream stream) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuStreamSynchronize")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUresult status = run_copies(stream);
  if (status == CUDA_ERROR_NOT_READY) return fake->violate("a wait for a stream would never end");
  return status;
}

CUresult event_create(CUevent* event, unsigned) {
  const Lock lock(fake->mutex);
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *event = reinterpret_cast<CUevent>(fake->next_object++);
  fake->events.emplace(*event, nullptr);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  const Lock lock(fake->mutex);
  if (fake->events.erase(event) == 0) return fake->violate("an event was destroyed twice");
  return CUDA_SUCCESS;
}

}  // namespace

bool yet_to_copy(std::uintptr_t address, std::size_t bytes) {
  const auto overlaps = [&](const Copy& copy) {
    const auto touches = [&](const void* pointer) {
      const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
      return pointer != nullptr && begin < address + bytes && address < begin + copy.bytes;
    };
    return touches(copy.to) || touches(copy.from);
  };
  for (const auto& [stream, copies] : fake->streams) {
    if (std::any_of(copies.begin(), copies.end(), overlaps)) return true;
  }
  return std::any_of(fake->orphans.begin(), fake->orphans.end(), overlaps);
}

void add_streams(CudaTable& table) {
  table.mem_alloc = mem_alloc;
  table.mem_free = mem_free;
  table.mem_host_alloc = host_alloc;
  table.mem_free_host = free_host;
  table.mem_host_get_device_pointer = host_pointer;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_query = query;
  table.stream_synchronize = synchronize;
  table.memcpy_h_to_d_async = copy_h_to_d;
  table.memset_d32_async = memset_d32;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
}

}  // namespace oriel::test
