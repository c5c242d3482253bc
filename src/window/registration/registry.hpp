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

/// What a collective needs to know of a registered window. A plain value, so that a lookup hands
/// out a copy that no deregistration can pull away.
struct RegisteredWindow {
  std::byte* user = nullptr;       ///< as registered
  std::size_t bytes = 0;           ///< as registered
  std::uint32_t flags = 0;         ///< as registered
  std::size_t slot_offset = 0;     ///< of the window's first byte in every rank's slot
  std::byte* flat_base = nullptr;  ///< the window in slot 0; slot s is s x slot size further
  void* handle = nullptr;          ///< the device object
  std::uint64_t serial = 0;        ///< counts the windows of the communicator, from 1; unique

  bool operator==(const RegisteredWindow&) const = default;
};

/// The windows of one communicator on this rank, by address: nested, adjacent, equal and
/// overlapping ones.
///
/// Thread safety: any thread may call anything. A lookup takes no lock, allocates nothing and takes
/// O(log windows): it reads an immutable snapshot. A change builds the next snapshot under a mutex,
/// O(windows), and frees the old one after the lookups that may still read it have ended, which it
/// waits for (they last nanoseconds).
class Registry {
 public:
  Registry();
  /// No lookup may be in progress.
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Makes all of `windows` visible at once, or changes nothing and throws. Their serials are new
  /// here.
  void insert(std::span<const RegisteredWindow> windows);
  /// Removes the window with this serial; false if there is none.
  bool erase(std::uint64_t serial);

  /// The window that holds all of [pointer, pointer + bytes), or nothing. Of several: the one that
  /// begins last; of those the shortest; of equal ones the most recently registered. So the
  /// innermost of nested windows is found, and the same one every time. An empty range counts as
  /// held by a window that it touches.
  std::optional<RegisteredWindow> find(const void* pointer, std::size_t bytes) const noexcept;

 private:
  struct Snapshot;
  class Reader;
  void publish(std::unique_ptr<const Snapshot> next) noexcept;

  mutable std::mutex writers_;
  std::atomic<const Snapshot*> current_;
  // Readers count themselves in under the parity of the epoch they saw. A writer moves the epoch on
  // and waits for the readers of the old parity; newcomers count under the other and see the new
  // snapshot.
  std::atomic<std::uint64_t> epoch_{0};
  mutable std::array<std::atomic<std::uint32_t>, 2> readers_{};
};

}  // namespace oriel::window
