// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace oriel::window {

/// Describes a registered window to a collective. A lookup returns a copy, which stays valid after
/// deregistration.
struct RegisteredWindow {
  std::byte* user = nullptr;       ///< value passed at registration
  std::size_t bytes = 0;           ///< value passed at registration
  std::uint32_t flags = 0;         ///< value passed at registration
  std::size_t slot_offset = 0;     ///< offset of the window's first byte in every rank's slot
  std::byte* flat_base = nullptr;  ///< address of the window in slot 0; slot s begins s x slot size
                                   ///< further
  void* handle = nullptr;          ///< the device object
  std::uint64_t serial = 0;        ///< unique in the communicator; counts from 1

  bool operator==(const RegisteredWindow&) const = default;
};

/// The windows of one communicator on this rank, by address. Windows may nest, touch, overlap or be
/// equal.
///
/// Thread safety: any thread may call any function. A lookup takes no lock, allocates nothing and
/// takes O(log windows): it reads an immutable snapshot. A change builds the next snapshot under a
/// mutex in O(windows log windows). It waits for the lookups that may still read the old snapshot.
/// Memory for the snapshot of a removal is allocated beforehand, so a removal cannot fail.
class Registry {
 public:
  Registry();
  /// No lookup may be in progress.
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Makes all of `windows` visible at once, or throws and changes nothing. Their serials must be
  /// new to this registry.
  void insert(std::span<const RegisteredWindow> windows);
  /// Removes the window with this serial; false if there is none.
  bool erase(std::uint64_t serial) noexcept;

  /// Returns a window that contains all of [pointer, pointer + bytes), or nothing. If several do,
  /// the last to begin is returned; of these the shortest; of equal ones the one registered last.
  /// An innermost nested window is thus found. An empty range counts as contained in a window that
  /// it touches.
  std::optional<RegisteredWindow> find(const void* pointer, std::size_t bytes) const noexcept;

 private:
  struct Snapshot;
  class Reader;
  /// Makes `next` visible. Returns the previous snapshot, which nobody reads any more.
  std::unique_ptr<Snapshot> publish(std::unique_ptr<Snapshot> next) noexcept;

  mutable std::mutex writers_;
  std::atomic<Snapshot*> current_;
  std::unique_ptr<Snapshot> spare_;  // reserved for all windows; null before the first insert()
  // A reader increments the counter of the parity of the epoch that it saw. A writer advances the
  // epoch and waits for the readers of the old parity. New readers count under the other parity and
  // see the new snapshot.
  std::atomic<std::uint64_t> epoch_{0};
  mutable std::array<std::atomic<std::uint32_t>, 2> readers_{};
};

}  // namespace oriel::window
