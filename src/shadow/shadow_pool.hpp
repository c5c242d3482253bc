// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "oriel/error.hpp"

/// Stores objects that kernels read, with copies that the host reads.
namespace oriel::shadow {

/// One upload: copies `bytes` bytes from the host copies to the objects.
struct Upload {
  std::byte* device;
  const std::byte* host;
  std::size_t bytes;
};

/// Memory for objects and their copies, two areas with the same layout. Released when destroyed.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual std::byte* device() const = 0;
  /// Returns the area of the copies; equals device() if the objects are in host memory.
  virtual std::byte* host() const = 0;
  virtual std::size_t bytes() const = 0;
};

/// Memory of a pool: host memory, or that of one GPU. Called by one thread at a time; outlives its
/// chunks.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Returns at least `bytes` bytes. The objects are aligned to 256. The copies are zeroed; the
  /// objects are undefined until uploaded.
  virtual Result<std::unique_ptr<Chunk>> make_chunk(std::size_t bytes) = 0;
  /// Returns once the objects equal their copies. Waits for its own work only.
  virtual Status upload(std::span<const Upload> uploads) = 0;
};

/// Objects of one size that kernels read by device address, each paired with a host copy. The
/// address is the handle that users get; on the host backend it is the object itself.
///
/// Writes go to the copy and reach the object with the next flush(), which merges copies. A freed
/// address is reused only after kQuarantine other frees. So a handle used after its end is found
/// stale instead of naming another object. Never synchronises a device, nor a stream but the pool's
/// own. Thread-safe.
class ShadowPool {
 public:
  /// Number of freed objects that wait before the first is reused.
  static constexpr std::size_t kQuarantine = 256;

  /// `alignment` is a power of two, at most 256.
  ShadowPool(std::unique_ptr<Backend> backend, std::size_t object_bytes, std::size_t alignment);
  ~ShadowPool();
  ShadowPool(const ShadowPool&) = delete;
  ShadowPool& operator=(const ShadowPool&) = delete;

  /// Allocates an object whose copy starts with `initial` (at most the object size), then zeros.
  Result<void*> allocate(std::span<const std::byte> initial);
  /// Frees `object`; invalid_argument unless it is in use.
  Status free(void* object);
  /// Returns the copy of `object`, valid until it is freed; null if `object` is not in use.
  const void* find(const void* object) const;
  /// Writes into the copy. Fails unless `object` is in use and the range lies inside it.
  Status write(void* object, std::size_t offset, std::span<const std::byte> bytes);
  /// Updates all objects from their copies; kernels launched afterwards see them. If an upload
  /// fails, the next flush() repeats it.
  Status flush();

 private:
  struct Page {  // 64 objects of a chunk
    std::byte* device;
    std::byte* host;
    std::size_t chunk;
    std::uint64_t live = 0;
    std::uint64_t dirty = 0;
  };
  struct Place {
    std::size_t page;
    unsigned index;
  };

  Status open_page();
  std::byte* copy_of(Place place) const;
  bool is_live(Place place) const;
  void mark_dirty(Place place);
  std::vector<Upload> collect_dirty() const;

  std::size_t object_bytes_;
  std::size_t stride_;
  std::mutex flush_mutex_;  // locked before mutex_; guards the dirty bits while mutex_ is shared
  mutable std::shared_mutex mutex_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // destroyed before backend_
  std::size_t chunk_used_ = 0;                  // bytes of the last chunk that pages occupy
  std::vector<Page> pages_;                     // ordered by chunk and address
  std::unordered_map<std::uintptr_t, Place> places_;
  std::deque<Place> fresh_;  // never used
  std::deque<Place> freed_;  // in the order in which they were freed
  bool any_dirty_ = false;
};

/// Returns this process's pool for objects of this size and alignment on `device`, -1 for the host.
/// Created with `make_backend()` at the first call; destroyed with its last holder.
Result<std::shared_ptr<ShadowPool>> shared_pool(
    int device, std::size_t object_bytes, std::size_t alignment,
    const std::function<Result<std::unique_ptr<Backend>>()>& make_backend);

/// Returns this process's pool for host objects of this size. An object is its own copy, and
/// flush() copies nothing.
std::shared_ptr<ShadowPool> host_pool(std::size_t object_bytes, std::size_t alignment);

/// Typed ShadowPool whose objects are `T`.
template <typename T>
class Shadows {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Shadows(std::shared_ptr<ShadowPool> pool) : pool_(std::move(pool)) {}

  Result<T*> allocate(const T& initial) {
    Result<void*> made = pool_->allocate(std::as_bytes(std::span(&initial, 1)));
    if (!made.ok()) return std::move(made).error();
    return static_cast<T*>(*made);
  }
  Status free(T* object) { return pool_->free(object); }
  const T* find(const T* object) const { return static_cast<const T*>(pool_->find(object)); }
  Status write(T* object, const T& value) {
    return pool_->write(object, 0, std::as_bytes(std::span(&value, 1)));
  }
  Status flush() { return pool_->flush(); }

 private:
  std::shared_ptr<ShadowPool> pool_;
};

/// One object of a pool, freed on destruction.
class OwnedShadow {
 public:
  OwnedShadow() = default;
  /// Allocates an object with `bytes`, and flushes the pool.
  static Result<OwnedShadow> make(std::shared_ptr<ShadowPool> pool,
                                  std::span<const std::byte> bytes);
  OwnedShadow(OwnedShadow&& other) noexcept;
  OwnedShadow& operator=(OwnedShadow&& other) noexcept;
  ~OwnedShadow();

  /// Returns the device address; null if empty.
  void* get() const { return object_; }

 private:
  std::shared_ptr<ShadowPool> pool_;
  void* object_ = nullptr;
};

}  // namespace oriel::shadow
