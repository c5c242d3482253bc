// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "shadow/shadow_pool.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"

namespace oriel::shadow {
namespace {

constexpr std::size_t kPageObjects = 64;
// Gap between dirty objects up to which one larger copy costs less than two copies.
constexpr std::size_t kMergeBytes = std::size_t{16} << 10;

std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

Error not_in_use(const void* object) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("there is no object {} here, or no longer", object))
      .with_hint("pass an object that allocate() has returned, and free it once");
}

class HostChunk final : public Chunk {
 public:
  explicit HostChunk(std::size_t bytes) : storage_(bytes / sizeof(Unit) + 1) {}
  std::byte* device() const override { return host(); }
  std::byte* host() const override {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(storage_.data()));
  }
  std::size_t bytes() const override { return storage_.size() * sizeof(Unit); }

 private:
  struct alignas(256) Unit {
    std::byte bytes[256] = {};
  };
  std::vector<Unit> storage_;
};

class HostBackend final : public Backend {
 public:
  Result<std::unique_ptr<Chunk>> make_chunk(std::size_t bytes) override {
    return std::unique_ptr<Chunk>(std::make_unique<HostChunk>(bytes));
  }
  Status upload(std::span<const Upload>) override { return {}; }
};

}  // namespace

ShadowPool::ShadowPool(std::unique_ptr<Backend> backend, std::size_t object_bytes,
                       std::size_t alignment)
    : object_bytes_(object_bytes),
      stride_(round_up(std::max<std::size_t>(object_bytes, 1), alignment)),
      backend_(std::move(backend)) {}

ShadowPool::~ShadowPool() = default;

std::byte* ShadowPool::copy_of(Place place) const {
  return pages_[place.page].host + place.index * stride_;
}

bool ShadowPool::is_live(Place place) const {
  return (pages_[place.page].live >> place.index & 1) != 0;
}

void ShadowPool::mark_dirty(Place place) {
  pages_[place.page].dirty |= std::uint64_t{1} << place.index;
  any_dirty_ = true;
}

/// Makes room for one more page. Grows by pages: a chunk of a GPU may hold thousands of objects,
/// and a communicator needs a handful.
Status ShadowPool::open_page() {
  const std::size_t page_bytes = kPageObjects * stride_;
  if (chunks_.empty() || chunk_used_ + page_bytes > chunks_.back()->bytes()) {
    ORIEL_TRY(std::unique_ptr<Chunk> made, backend_->make_chunk(page_bytes));
    chunks_.push_back(std::move(made));
    chunk_used_ = 0;
  }
  const Chunk& chunk = *chunks_.back();
  Page page{chunk.device() + chunk_used_, chunk.host() + chunk_used_, chunks_.size() - 1};
  // The first upload zeroes all objects of the page. Filling a chunk would need a kernel, which
  // waits while others fill the GPU.
  page.dirty = ~std::uint64_t{0};
  any_dirty_ = true;
  pages_.push_back(page);
  chunk_used_ += page_bytes;
  for (unsigned index = 0; index < kPageObjects; ++index) {
    const Place place{pages_.size() - 1, index};
    places_.emplace(address_of(page.device + index * stride_), place);
    fresh_.push_back(place);
  }
  return {};
}

Result<void*> ShadowPool::allocate(std::span<const std::byte> initial) {
  if (initial.size() > object_bytes_) {
    return Error(ErrorCode::internal, fmt::format("an object of {} bytes in a pool for {}",
                                                  initial.size(), object_bytes_));
  }
  const std::lock_guard lock(mutex_);
  std::deque<Place>* source = freed_.size() > kQuarantine ? &freed_ : &fresh_;
  if (source->empty()) ORIEL_CHECK(open_page());
  const Place place = source->front();
  source->pop_front();
  if (!initial.empty()) std::memcpy(copy_of(place), initial.data(), initial.size());
  Page& page = pages_[place.page];
  page.live |= std::uint64_t{1} << place.index;
  mark_dirty(place);
  return static_cast<void*>(page.device + place.index * stride_);
}

Status ShadowPool::free(void* object) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(address_of(object));
  if (found == places_.end() || !is_live(found->second)) return not_in_use(object);
  const Place place = found->second;
  // The next flush() zeroes the object. If a kernel gets it by mistake, it then reads null pointers
  // instead of pointers to freed memory.
  std::memset(copy_of(place), 0, object_bytes_);
  mark_dirty(place);
  pages_[place.page].live &= ~(std::uint64_t{1} << place.index);
  try {
    freed_.push_back(place);
  } catch (const std::bad_alloc&) {  // destructors call free(); the place is not reused
  }
  return {};
}

const void* ShadowPool::find(const void* object) const {
  const std::shared_lock lock(mutex_);
  const auto found = places_.find(address_of(object));
  if (found == places_.end() || !is_live(found->second)) return nullptr;
  return copy_of(found->second);
}

Status ShadowPool::write(void* object, std::size_t offset, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(address_of(object));
  if (found == places_.end() || !is_live(found->second)) return not_in_use(object);
  if (offset > object_bytes_ || bytes.size() > object_bytes_ - offset) {
    return Error(ErrorCode::internal, fmt::format("a write of {} bytes at {} of an object of {}",
                                                  bytes.size(), offset, object_bytes_));
  }
  if (!bytes.empty()) std::memcpy(copy_of(found->second) + offset, bytes.data(), bytes.size());
  mark_dirty(found->second);
  return {};
}

/// Returns the uploads of flush(). Dirty objects of a chunk that are close together are merged;
/// clean objects between them are rewritten with their present contents.
std::vector<Upload> ShadowPool::collect_dirty() const {
  std::vector<Upload> uploads;
  std::size_t chunk_of_last = 0;
  for (const Page& page : pages_) {
    for (unsigned index = 0; index < kPageObjects; ++index) {
      if ((page.dirty >> index & 1) == 0) continue;
      std::byte* const device = page.device + index * stride_;
      if (!uploads.empty() && chunk_of_last == page.chunk) {
        Upload& last = uploads.back();
        const auto span = static_cast<std::size_t>(device - last.device);
        if (span - last.bytes <= kMergeBytes) {
          last.bytes = span + stride_;
          continue;
        }
      }
      uploads.push_back({device, page.host + index * stride_, stride_});
      chunk_of_last = page.chunk;
    }
  }
  return uploads;
}

Status ShadowPool::flush() {
  const std::lock_guard flushing(flush_mutex_);
  // Shared: calls that look up an object do not wait for the stream.
  const std::shared_lock lock(mutex_);
  if (!any_dirty_) return {};
  const std::vector<Upload> uploads = collect_dirty();
  ORIEL_CHECK(backend_->upload(uploads));
  for (Page& page : pages_) page.dirty = 0;
  any_dirty_ = false;
  return {};
}

Result<std::shared_ptr<ShadowPool>> shared_pool(
    int device, std::size_t object_bytes, std::size_t alignment,
    const std::function<Result<std::unique_ptr<Backend>>()>& make_backend) {
  struct Table {
    std::mutex mutex;
    std::map<std::tuple<int, std::size_t, std::size_t>, std::weak_ptr<ShadowPool>> pools;
  };
  static Table* const table = new Table;  // outlives every static object
  const std::lock_guard lock(table->mutex);
  std::weak_ptr<ShadowPool>& known = table->pools[{device, object_bytes, alignment}];
  if (auto pool = known.lock()) return pool;
  ORIEL_TRY(std::unique_ptr<Backend> backend, make_backend());
  auto pool = std::make_shared<ShadowPool>(std::move(backend), object_bytes, alignment);
  known = pool;
  return pool;
}

std::shared_ptr<ShadowPool> host_pool(std::size_t object_bytes, std::size_t alignment) {
  constexpr int kHost = -1;
  return *shared_pool(kHost, object_bytes, alignment, [] {
    return Result<std::unique_ptr<Backend>>(std::make_unique<HostBackend>());
  });
}

Result<OwnedShadow> OwnedShadow::make(std::shared_ptr<ShadowPool> pool,
                                      std::span<const std::byte> bytes) {
  OwnedShadow made;
  auto object = pool->allocate(bytes);
  if (!object.ok()) return std::move(object).error();
  made.object_ = *object;
  made.pool_ = std::move(pool);
  ORIEL_CHECK(made.pool_->flush());
  return made;
}

OwnedShadow::OwnedShadow(OwnedShadow&& other) noexcept
    : pool_(std::move(other.pool_)), object_(std::exchange(other.object_, nullptr)) {}

OwnedShadow& OwnedShadow::operator=(OwnedShadow&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(object_, other.object_);
  return *this;
}

OwnedShadow::~OwnedShadow() {
  if (object_ != nullptr) static_cast<void>(pool_->free(object_));
}

}  // namespace oriel::shadow
