// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"

struct ncclWindow_vidmem;  // pointee of ncclWindow_t

/// Pointers into registered windows of this rank and of other ranks. All functions are local and do
/// not block, and any thread may call them. No function orders memory: each reads only what the
/// host wrote before the kernel.
///
/// Example: loads element `index` of world rank `rank`, in a kernel that gets the handle.
/// ```cpp
/// ORIEL_DEVICE_FN bool load_element(const ncclWindow_vidmem* handle, std::int32_t rank,
///                                   std::uint64_t index, float& value) {
///   const auto window = oriel::device::WindowView::of(handle);
///   const void* const from = window.world_peer(rank, index * sizeof(float), sizeof(float));
///   if (from == nullptr) return false;  // outside the window, or a rank of another team
///   value = *static_cast<const float*>(from);
///   return true;
/// }
/// ```
namespace oriel::device {

struct NetworkWindow;  // network.hpp

/// Returns `base` advanced by `units` x 4 GiB: one 32-bit addition to the high word of the address.
template <class T>
[[nodiscard]] ORIEL_DEVICE_FN T* advance_4g(T* base, std::uint32_t units) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base) +
                              (static_cast<std::uintptr_t>(units) << 32));
}

/// Pointee of a window handle, in device memory for GPU windows, otherwise in host memory. The host
/// writes it and kernels read it. Its first 72 bytes have the layout that device code compiled
/// against NCCL 2.28.9 expects.
struct WindowObject {
  void* host;                         ///< the host's record of the window
  char* flat_base;                    ///< first byte of the window of LSA rank 0
  std::int32_t lsa_rank;              ///< own index in the LSA team
  std::int32_t world_rank;            ///< own rank in the communicator
  std::uint32_t stride_4g;            ///< distance of two LSA ranks' slots, in units of 4 GiB
  std::uint32_t multicast_offset_4k;  ///< unused: Oriel does not use multicast
  std::uint32_t gin_offset_4k;        ///< offset for network windows in 4 KiB
  void* gin_windows[4];               ///< one per network connection, or null
  std::uint32_t magic;                ///< kWindowMagic, in objects of Oriel
  std::uint32_t version;              ///< kWindowVersion
  std::uint64_t size_bytes;           ///< size of the window, the same on all ranks
  std::int32_t world_size;            ///< ranks of the communicator
  std::int32_t lsa_size;              ///< ranks of the LSA team
  const std::int32_t* lsa_index_of;   ///< world rank -> LSA rank, -1 for ranks out of reach
  const NetworkWindow* network;       ///< registration with NICs; null if no rank is out of reach
  std::uint64_t communicator;         ///< CommView::communicator of its communicator
};
inline constexpr std::uint32_t kWindowMagic = 0x4c49524fu;  ///< marks Oriel's objects: "ORIL"
inline constexpr std::uint32_t kWindowVersion = 3;          ///< version of WindowObject
inline constexpr std::size_t kNcclWindowBytes = 72;         ///< size of NCCL 2.28.9's object
static_assert(offsetof(WindowObject, magic) == kNcclWindowBytes);
static_assert(sizeof(WindowObject) == 120);

/// View of one window in a kernel: a value of 56 bytes, cheap to copy. The host passes it by value
/// to its own kernels. User kernels create it from the handle.
/// No function computes an address outside the window. Functions return null if the range leaves
/// the window, or if the rank is out of reach or out of range. An empty range must also start
/// inside. Offsets and sizes are in bytes.
struct WindowView {
  char* flat_base = nullptr;                   ///< first byte of the window of LSA rank 0
  std::uint64_t size_bytes = 0;                ///< size in bytes; 0: every range is refused
  const std::int32_t* lsa_index_of = nullptr;  ///< world rank -> LSA rank or -1
  std::uint32_t stride_4g = 0;                 ///< distance of two slots, in units of 4 GiB
  std::int32_t lsa_rank = 0;                   ///< own index in the LSA team
  std::int32_t lsa_size = 0;                   ///< ranks of the LSA team
  std::int32_t world_size = 0;                 ///< ranks of the communicator
  const NetworkWindow* network = nullptr;  ///< for world.hpp, which accesses ranks of other nodes
  std::uint64_t communicator = 0;          ///< number of its communicator, for world.hpp

  /// Returns the view of a handle. A null handle, or an object that Oriel did not create, gives a
  /// view of size 0. Must run where the kernels run: the handle of a GPU window points to device
  /// memory.
  [[nodiscard]] static ORIEL_DEVICE_FN WindowView of(const ncclWindow_vidmem* handle) {
    return of(reinterpret_cast<const WindowObject*>(handle));
  }
  /// Returns the view of an object, as for its handle.
  [[nodiscard]] static ORIEL_DEVICE_FN WindowView of(const WindowObject* object) {
    if (object == nullptr || object->magic != kWindowMagic || object->version != kWindowVersion) {
      return WindowView{};
    }
    return WindowView{object->flat_base,  object->size_bytes, object->lsa_index_of,
                      object->stride_4g,  object->lsa_rank,   object->lsa_size,
                      object->world_size, object->network,    object->communicator};
  }

  /// Returns whether `bytes` bytes at `offset` lie inside the window.
  [[nodiscard]] ORIEL_DEVICE_FN bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    return offset < size_bytes && bytes <= size_bytes - offset;
  }

  /// Returns the address of the `bytes` bytes at `offset` in this rank's own window. Null unless
  /// the window contains them.
  [[nodiscard]] ORIEL_DEVICE_FN void* local(std::uint64_t offset, std::uint64_t bytes) const {
    return lsa_peer(lsa_rank, offset, bytes);
  }

  /// Returns the address of the `bytes` bytes at `offset` in the window of LSA rank `index`. Null
  /// unless the team has that rank and the window contains the bytes.
  [[nodiscard]] ORIEL_DEVICE_FN void* lsa_peer(std::int32_t index, std::uint64_t offset,
                                               std::uint64_t bytes) const {
    const auto slot = static_cast<std::uint32_t>(index);
    if (slot >= static_cast<std::uint32_t>(lsa_size) || !contains(offset, bytes)) return nullptr;
    return advance_4g(flat_base + offset, slot * stride_4g);
  }

  /// Returns the address of the `bytes` bytes at `offset` in the window of world rank `rank`. Null
  /// unless that rank is in this rank's LSA team and the window contains the bytes.
  [[nodiscard]] ORIEL_DEVICE_FN void* world_peer(std::int32_t rank, std::uint64_t offset,
                                                 std::uint64_t bytes) const {
    if (static_cast<std::uint32_t>(rank) >= static_cast<std::uint32_t>(world_size)) return nullptr;
    return lsa_peer(lsa_index_of[rank], offset, bytes);
  }
};

}  // namespace oriel::device
