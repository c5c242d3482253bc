// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/registry.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <thread>
#include <vector>

namespace oriel::window {
namespace {

std::uintptr_t begin_of(const RegisteredWindow& window) {
  return reinterpret_cast<std::uintptr_t>(window.user);
}
std::uintptr_t end_of(const RegisteredWindow& window) {
  return begin_of(window) + window.bytes;
}

/// Orders windows so that the last window that contains a range is the one to find.
bool before(const RegisteredWindow& a, const RegisteredWindow& b) {
  if (begin_of(a) != begin_of(b)) return begin_of(a) < begin_of(b);
  if (a.bytes != b.bytes) return a.bytes > b.bytes;
  return a.serial < b.serial;
}

}  // namespace

/// Windows in order, and a complete binary tree of the greatest end in each subtree. Node 1 is the
/// root, node i has the children 2i and 2i + 1, and window j is leaf `leaves + j`.
struct Registry::Snapshot {
  explicit Snapshot(std::vector<RegisteredWindow> unsorted) : windows(std::move(unsorted)) {
    build();
  }
  /// Reserves memory for `count` windows.
  explicit Snapshot(std::size_t count) {
    windows.reserve(count);
    greatest_end.reserve(2 * std::bit_ceil(count));
  }

  /// Sorts the windows and builds the tree. Allocates nothing if enough is reserved.
  void build() {
    std::sort(windows.begin(), windows.end(), before);
    leaves = std::bit_ceil(windows.size());
    greatest_end.assign(2 * leaves, 0);
    for (std::size_t i = 0; i < windows.size(); ++i) greatest_end[leaves + i] = end_of(windows[i]);
    for (std::size_t node = leaves - 1; node >= 1; --node) {
      greatest_end[node] = std::max(greatest_end[2 * node], greatest_end[2 * node + 1]);
    }
  }

  /// Returns the last of the first `count` windows that ends at or after `end`.
  const RegisteredWindow* last_reaching(std::size_t count, std::uintptr_t end) const {
    if (count == 0) return nullptr;
    std::size_t node = leaves + count - 1;
    while (greatest_end[node] < end) {
      while (node % 2 == 0) node /= 2;  // the parent's subtree has nothing further left
      if (node == 1) return nullptr;
      --node;
    }
    while (node < leaves) node = 2 * node + (greatest_end[2 * node + 1] >= end ? 1 : 0);
    return &windows[node - leaves];
  }

  std::vector<RegisteredWindow> windows;
  std::size_t leaves = 1;
  std::vector<std::uintptr_t> greatest_end;
};

/// Keeps the snapshot that it read alive for the reader's lifetime.
class Registry::Reader {
 public:
  explicit Reader(const Registry& registry) : registry_(registry) {
    for (;;) {
      const std::uint64_t epoch = registry.epoch_.load();
      parity_ = epoch % 2;
      registry.readers_[parity_].fetch_add(1);
      // A writer waits only for readers that were counted before the epoch advanced.
      if (registry.epoch_.load() == epoch) break;
      registry.readers_[parity_].fetch_sub(1);
    }
    snapshot_ = registry.current_.load();
  }
  ~Reader() { registry_.readers_[parity_].fetch_sub(1); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const Snapshot& operator*() const { return *snapshot_; }

 private:
  const Registry& registry_;
  std::size_t parity_ = 0;
  const Snapshot* snapshot_ = nullptr;
};

Registry::Registry() : current_(new Snapshot(std::vector<RegisteredWindow>())) {}

Registry::~Registry() {
  delete current_.load();
}

std::unique_ptr<Registry::Snapshot> Registry::publish(std::unique_ptr<Snapshot> next) noexcept {
  std::unique_ptr<Snapshot> old(current_.exchange(next.release()));
  const std::uint64_t epoch = epoch_.fetch_add(1);
  while (readers_[epoch % 2].load() != 0) std::this_thread::yield();
  return old;
}

void Registry::insert(std::span<const RegisteredWindow> windows) {
  const std::lock_guard lock(writers_);
  std::vector<RegisteredWindow> all = current_.load()->windows;
  all.insert(all.end(), windows.begin(), windows.end());
  auto spare = std::make_unique<Snapshot>(all.size());
  publish(std::make_unique<Snapshot>(std::move(all)));
  spare_ = std::move(spare);
}

bool Registry::erase(std::uint64_t serial) noexcept {
  const std::lock_guard lock(writers_);
  if (spare_ == nullptr) return false;
  std::vector<RegisteredWindow>& left = spare_->windows;
  left = current_.load()->windows;  // fits
  const auto removed =
      std::erase_if(left, [&](const RegisteredWindow& window) { return window.serial == serial; });
  if (removed == 0) return false;
  spare_->build();
  spare_ = publish(std::move(spare_));
  return true;
}

std::optional<RegisteredWindow> Registry::find(const void* pointer,
                                               std::size_t bytes) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  if (bytes > std::numeric_limits<std::uintptr_t>::max() - begin) return std::nullopt;
  const Reader reader(*this);
  const auto& windows = (*reader).windows;
  const auto first_after = std::upper_bound(
      windows.begin(), windows.end(), begin,
      [](std::uintptr_t address, const RegisteredWindow& w) { return address < begin_of(w); });
  const auto* found = (*reader).last_reaching(
      static_cast<std::size_t>(first_after - windows.begin()), begin + bytes);
  if (found == nullptr) return std::nullopt;
  return *found;
}

}  // namespace oriel::window
