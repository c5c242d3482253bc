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

/// Objects that kernels read, and their copies that the host reads.
namespace oriel::shadow {

/// One upload: `bytes` from the host copies to the objects.
struct Upload {
  std::byte* device;
  const std::byte* host;
  std::size_t bytes;
};

/// Memory for objects, in two places with the same layout. Released when destroyed.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual std::byte* device() const = 0;
  /// The copies; the same as device() where the objects are in host memory.
  virtual std::byte* host() const = 0;
  virtual std::size_t bytes() const = 0;
};

/// Where a pool keeps its objects: in host memory, or in that of one GPU. Called by one thread at a
/// time; outlives its chunks.
class Backend {
 public:
  virtual ~Backend() = default;
  /// At least `bytes`, aligned to 256, the copies zeroed; the objects hold anything until uploaded.
  virtual Result<std::unique_ptr<Chunk>> make_chunk(std::size_t bytes) = 0;
  /// Ends when the objects hold what the copies did. Waits for its own work only.
  virtual Status upload(std::span<const Upload> uploads) = 0;
};

/// Objects of one size that kernels read by their device address, each paired with a host copy. The
/// address is the handle that users get: on the host backend it is the object itself.
///
/// Writes go to the copy and reach the object with the next flush(), many in one copy. Freed
/// addresses are given out again late (after kQuarantine others), so that a handle that is used
/// after its end is found to be stale instead of naming somebody else's object. Never synchronises
/// a device, nor any stream but the pool's own. Thread-safe.
class ShadowPool {
 public:
  /// How many freed objects wait before the first of them is used again.
  static constexpr std::size_t kQuarantine = 256;

  /// `alignment` is a power of two, at most 256.
  ShadowPool(std::unique_ptr<Backend> backend, std::size_t object_bytes, std::size_t alignment);
  ~ShadowPool();
  ShadowPool(const ShadowPool&) = delete;
  ShadowPool& operator=(const ShadowPool&) = delete;

  /// A new object whose copy begins with `initial` (at most its size), and zeros after it.
  Result<void*> allocate(std::span<const std::byte> initial);
  /// invalid_argument unless `object` is in use.
  Status free(void* object);
  /// The copy of `object`, valid until it is freed; null if there is no such object, or no more.
  const void* find(const void* object) const;
  /// Writes into the copy; refused unless it is in use and the range inside it.
  Status write(void* object, std::size_t offset, std::span<const std::byte> bytes);
  /// Brings all objects up to date with their copies; kernels launched after it see them. What an
  /// upload that failed should have brought is brought by the next.
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
  std::mutex flush_mutex_;  // taken before mutex_, and guards the dirty bits where that is shared
  mutable std::shared_mutex mutex_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // destroyed before backend_
  std::size_t chunk_used_ = 0;                  // bytes of the last chunk that pages have
  std::vector<Page> pages_;                     // in the order of their chunks and addresses
  std::unordered_map<std::uintptr_t, Place> places_;
  std::deque<Place> fresh_;  // never used
  std::deque<Place> freed_;  // in the order of their ends
  bool any_dirty_ = false;
};

/// The pool of this process for objects of this size on `device`, -1 for the host; made over
/// `make_backend()` at the first call, gone with its last holder.
Result<std::shared_ptr<ShadowPool>> shared_pool(
    int device, std::size_t object_bytes, std::size_t alignment,
    const std::function<Result<std::unique_ptr<Backend>>()>& make_backend);

/// The pool of this process for host objects of this size: an object is its own copy, and flush()
/// has nothing to do.
std::shared_ptr<ShadowPool> host_pool(std::size_t object_bytes, std::size_t alignment);

/// A ShadowPool whose objects are `T`.
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

/// One object of a pool, freed with this.
class OwnedShadow {
 public:
  OwnedShadow() = default;
  /// Holds `bytes`, once the pool has been flushed.
  static Result<OwnedShadow> make(std::shared_ptr<ShadowPool> pool,
                                  std::span<const std::byte> bytes);
  OwnedShadow(OwnedShadow&& other) noexcept;
  OwnedShadow& operator=(OwnedShadow&& other) noexcept;
  ~OwnedShadow();

  /// As kernels address it; null if there is none.
  void* get() const { return object_; }

 private:
  std::shared_ptr<ShadowPool> pool_;
  void* object_ = nullptr;
};

}  // namespace oriel::shadow
