// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "support/cuda/fake_cuda_state.hpp"

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
  fake->buffers.emplace(*out, Buffer{bytes, on_host, false});
  return CUDA_SUCCESS;
}

CUresult free_buffer(std::uintptr_t address, bool on_host) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemFree")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = fake->buffers.find(address);
  if (found == fake->buffers.end() || found->second.on_host != on_host ||
      found->second.registered) {
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
  // Keeps the pending operations as orphans: the driver lets them run on.
  fake->orphans.insert(fake->orphans.end(), found->second.begin(), found->second.end());
  fake->streams.erase(found);
  return CUDA_SUCCESS;
}

/// Returns true if the whole range is memory that streams can access. The caller holds the mutex.
bool is_reachable(std::uintptr_t address, std::size_t bytes) {
  const auto buffer = containing(fake->buffers, address);
  if (buffer != fake->buffers.end()) {
    return bytes <= buffer->first + buffer->second.bytes - address;
  }
  const auto mapped = containing(fake->mappings, address);
  return mapped != fake->mappings.end() && mapped->second.accessible &&
         bytes <= mapped->first + mapped->second.bytes - address;
}

CUresult enqueue(const Copy& copy, CUstream stream) {
  const Lock lock(fake->mutex);
  if (fake->streams_status != CUDA_SUCCESS) return fake->streams_status;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const auto found = fake->streams.find(stream);
  if (found == fake->streams.end()) return fake->violate("a copy on a stream that does not exist");
  if (!is_reachable(reinterpret_cast<std::uintptr_t>(copy.to), copy.bytes)) {
    return fake->violate("a copy to memory that is not there");
  }
  found->second.push_back(copy);
  return CUDA_SUCCESS;
}

CUresult copy_h_to_d(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return enqueue({Copy::Kind::copy, reinterpret_cast<void*>(to), from, bytes, 0}, stream);
}

/// Copies from memory of a GPU. The model requires a host target to be pinned: a copy to pageable
/// memory would not be asynchronous.
CUresult copy_from_device(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  {
    const Lock lock(fake->mutex);
    if (!is_reachable(from, bytes)) return fake->violate("a copy from memory that is not there");
  }
  return enqueue({Copy::Kind::copy, to, reinterpret_cast<const void*>(from), bytes, 0}, stream);
}
CUresult copy_d_to_d(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_from_device(reinterpret_cast<void*>(to), from, bytes, stream);
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream) {
  const bool as_used = copy->srcMemoryType == CU_MEMORYTYPE_HOST &&
                       copy->dstMemoryType == CU_MEMORYTYPE_DEVICE &&
                       copy->srcPitch >= copy->WidthInBytes && copy->dstPitch >= copy->WidthInBytes;
  if (!as_used) {
    const Lock lock(fake->mutex);
    return fake->violate("a copy of rows of another form than the model knows");
  }
  for (std::size_t row = 0; row < copy->Height; ++row) {
    const auto* from = static_cast<const char*>(copy->srcHost) + row * copy->srcPitch;
    const CUdeviceptr to = copy->dstDevice + row * copy->dstPitch;
    const CUresult status = copy_h_to_d(to, from, copy->WidthInBytes, stream);
    if (status != CUDA_SUCCESS) return status;
  }
  return CUDA_SUCCESS;
}

/// Registers memory that the driver did not allocate, such as a mapped memfd, for access by the
/// devices.
CUresult host_register(void* address, std::size_t bytes, unsigned) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemHostRegister")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  // Registers whole pages; each page can be registered only once.
  constexpr std::uintptr_t kPage = 4096;
  const auto shares_page = [&](const auto& other) {
    return other.second.registered && other.first / kPage <= (begin + bytes - 1) / kPage &&
           begin / kPage <= (other.first + other.second.bytes - 1) / kPage;
  };
  const auto& known = fake->buffers;
  if (std::any_of(known.begin(), known.end(), shares_page)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  const bool fresh = fake->buffers.emplace(begin, Buffer{bytes, true, true}).second;
  return fresh ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* address) {
  const Lock lock(fake->mutex);
  const auto found = fake->buffers.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == fake->buffers.end() || !found->second.registered) {
    return fake->violate("memory was unregistered that was not registered");
  }
  if (yet_to_copy(found->first, found->second.bytes)) {
    return fake->violate("memory was unregistered that a stream is yet to copy");
  }
  fake->buffers.erase(found);
  return CUDA_SUCCESS;
}

CUresult memset_d32(CUdeviceptr to, unsigned value, std::size_t words, CUstream stream) {
  return enqueue({Copy::Kind::set, reinterpret_cast<void*>(to), nullptr, words * 4, value}, stream);
}

CUresult write_word(CUdeviceptr to, std::uint64_t value, std::size_t bytes, CUstream stream) {
  if (to % bytes != 0) {
    const Lock lock(fake->mutex);
    return fake->violate("a stream write to a word that is not aligned");
  }
  return enqueue({Copy::Kind::write, reinterpret_cast<void*>(to), nullptr, bytes, value}, stream);
}
CUresult batch_mem_op(CUstream stream, unsigned count, CUstreamBatchMemOpParams* words,
                      unsigned flags) {
  if (count == 0 || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const auto& word = words[i].writeValue;
    const bool is_long = word.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!is_long && word.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (word.flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult status = is_long ? write_word(word.address, word.value64, 8, stream)
                                    : write_word(word.address, word.value, 4, stream);
    if (status != CUDA_SUCCESS) return status;
  }
  return CUDA_SUCCESS;
}

template <class Word>
void store_word(void* to, Word value, std::memory_order order) {
  std::atomic_ref<Word>(*static_cast<Word*>(to)).store(value, order);
}

template <class Word>
bool copy_word(const Copy& copy) {
  const auto places =
      reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from);
  if (copy.bytes != sizeof(Word) || places % sizeof(Word) != 0) return false;
  auto* const from = static_cast<Word*>(const_cast<void*>(copy.from));
  const Word value = std::atomic_ref<Word>(*from).load(std::memory_order_relaxed);
  store_word(copy.to, value, std::memory_order_relaxed);
  return true;
}

/// Copies an aligned word in one piece, as a copy engine does: another thread may be reading it.
void copy_bytes(const Copy& copy) {
  if (copy_word<std::uint64_t>(copy) || copy_word<std::uint32_t>(copy)) return;
  std::memcpy(copy.to, copy.from, copy.bytes);
}

/// Releases earlier writes at the other addresses at which the target memory is mapped. A waiting
/// thread may read the word at another address than the stream writes to. To the thread sanitizer
/// such accesses are unordered. The fetch_or does not change the word. The caller holds the mutex.
void release_elsewhere([[maybe_unused]] const Copy& copy) {
#if defined(__SANITIZE_THREAD__)
  const auto to = reinterpret_cast<std::uintptr_t>(copy.to);
  const auto own = containing(fake->mappings, to);
  if (own == fake->mappings.end()) return;
  for (const auto& [base, mapped] : fake->mappings) {
    const bool is_other = base != own->first && mapped.accessible;
    if (!is_other || mapped.physical != own->second.physical) continue;
    const std::uintptr_t at = base + (to - own->first);
    if (copy.bytes == 8) {
      std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
          .fetch_or(0, std::memory_order_release);
    } else {
      std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at))
          .fetch_or(0, std::memory_order_release);
    }
  }
#endif
}

void run(const Copy& copy) {
  ++fake->copies;
  if (copy.kind == Copy::Kind::write) release_elsewhere(copy);
  if (copy.kind == Copy::Kind::copy) {
    copy_bytes(copy);
  } else if (copy.kind == Copy::Kind::set) {
    std::fill_n(static_cast<unsigned*>(copy.to), copy.bytes / 4, static_cast<unsigned>(copy.value));
  } else if (copy.bytes == 8) {
    store_word(copy.to, copy.value, std::memory_order_release);
  } else {
    store_word(copy.to, static_cast<std::uint32_t>(copy.value), std::memory_order_release);
  }
}

/// Runs all pending operations of the stream. Returns CUDA_ERROR_NOT_READY, without running any, if
/// a set has to wait for full devices. The caller holds the mutex.
CUresult run_copies(CUstream stream) {
  if (fake->streams_status != CUDA_SUCCESS) return fake->streams_status;
  const auto found = fake->streams.find(stream);
  if (found == fake->streams.end()) return fake->violate("a stream was waited for after its end");
  const bool sets = std::any_of(found->second.begin(), found->second.end(),
                                [](const Copy& copy) { return copy.kind == Copy::Kind::set; });
  if (fake->devices_full && sets) return CUDA_ERROR_NOT_READY;
  for (const Copy& copy : found->second) run(copy);
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

int FakeCuda::run_streams(int each) {
  const Lock lock(state_->mutex);
  if (state_->streams_status != CUDA_SUCCESS) return 0;
  int done = 0;
  for (auto& [stream, copies] : state_->streams) {
    for (int i = 0; i < each && !copies.empty(); ++i, ++done) {
      if (state_->devices_full && copies.front().kind == Copy::Kind::set) break;
      run(copies.front());
      copies.erase(copies.begin());
    }
  }
  return done;
}

void FakeCuda::fail_streams(CUresult status) {
  const Lock lock(state_->mutex);
  state_->streams_status = status;
}

bool yet_to_copy(std::uintptr_t address, std::size_t bytes) {
  if (fake->streams_status != CUDA_SUCCESS) return false;  // failed streams run nothing
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
  table.memcpy_d_to_h_async = copy_from_device;
  table.memcpy_d_to_d_async = copy_d_to_d;
  table.memcpy_2d_async = copy_2d;
  table.mem_host_register = host_register;
  table.mem_host_unregister = host_unregister;
  table.stream_batch_mem_op = batch_mem_op;
  table.memset_d32_async = memset_d32;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
}

}  // namespace oriel::test
