// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/access.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/rounding.hpp"

/// Work-queue entries (WQEs) in the format of NVIDIA's mlx5 adapters, which the software NIC
/// executes as well. A WQE begins with a control segment and has up to 5 parts of 16 bytes here. It
/// takes whole basic blocks (WQEBBs) of 64 bytes. All fields are big-endian.
/// Source: the structures of rdma-core's mlx5dv.h. Masked atomics and the dump opcode come from
/// NVSHMEM's published device headers. No WQE here has been run on a real adapter. All functions
/// but the constructor of InlineBytes only compute: any thread may call them, they do not block and
/// access no memory.
///
/// Example: builds a WQE that writes 4096 bytes to the peer and asks for a completion.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// constexpr ORIEL_DEVICE_FN dq::Wqe<3> write_page(dq::Place place, dq::RemoteAddress to,
///                                                   std::uint64_t from, std::uint32_t lkey) {
///   return dq::transfer_wqe(dq::Opcode::write, place, dq::kSignalled, to, {from, lkey, 4096});
/// }
/// ```
namespace oriel::device::queue {

inline constexpr std::uint32_t kWqebbBytes = 64;    ///< size of a WQEBB
inline constexpr std::uint32_t kPartsPerWqebb = 4;  ///< parts of 16 bytes in a WQEBB
/// Maximum bytes of data of one WQE. The limit of the format is 2 GiB.
inline constexpr std::uint32_t kWqeBytesMost = std::uint32_t{1} << 30;

/// One basic block (WQEBB) of a send queue.
struct Wqebb {
  Pack part[kPartsPerWqebb];  ///< the parts, big-endian
};
static_assert(sizeof(Wqebb) == kWqebbBytes);

/// Opcodes of mlx5 WQEs.
enum class Opcode : std::uint8_t {
  nop = 0x00,                  ///< moves nothing
  write = 0x08,                ///< RDMA write
  write_immediate = 0x09,      ///< RDMA write; the peer gets a completion with 4 bytes of data
  read = 0x10,                 ///< RDMA read
  compare_swap = 0x11,         ///< 8 bytes
  fetch_add = 0x12,            ///< 8 bytes
  masked_compare_swap = 0x14,  ///< 4 or 8 bytes; masks select what is compared and set
  masked_fetch_add = 0x15,     ///< 4 or 8 bytes; no carry leaves a bit of the boundary mask
  dump = 0x23,  ///< reads local memory and drops it; done once earlier inbound writes are visible
};

/// Flags of the control segment.
inline constexpr std::uint32_t kSignalled = 2u
                                            << 2;  ///< a completion in any case, not on error only
inline constexpr std::uint32_t kFenced = 2u << 5;  ///< start after all earlier reads and atomics
/// Width of a masked atomic, in the modifier of its opcode.
inline constexpr std::uint32_t kMasked4Bytes = 0x08;
inline constexpr std::uint32_t kMasked8Bytes = 0x09;  ///< see kMasked4Bytes

/// Reverses the bytes: converts from or to big-endian on a little-endian machine.
constexpr ORIEL_DEVICE_FN std::uint32_t big_endian(std::uint32_t value) {
  return (value >> 24) | ((value >> 8) & 0xff00u) | ((value & 0xff00u) << 8) | (value << 24);
}
/// Reverses the bytes, as above.
constexpr ORIEL_DEVICE_FN std::uint64_t big_endian(std::uint64_t value) {
  return static_cast<std::uint64_t>(big_endian(static_cast<std::uint32_t>(value))) << 32 |
         big_endian(static_cast<std::uint32_t>(value >> 32));
}

namespace detail {

constexpr ORIEL_DEVICE_FN std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}
constexpr ORIEL_DEVICE_FN std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr ORIEL_DEVICE_FN Pack big_endian_part(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  return Pack{{big_endian(a), big_endian(b), big_endian(c), big_endian(d)}};
}
constexpr ORIEL_DEVICE_FN Pack big_endian_part(std::uint64_t a, std::uint64_t b) {
  return big_endian_part(high(a), low(a), high(b), low(b));
}

}  // namespace detail

/// Position of a WQE: the number of its queue (24 bits), and the index of its first WQEBB. The
/// index counts since the queue was created; the format holds its low 16 bits.
struct Place {
  std::uint32_t queue = 0;  ///< QueueView::number
  std::uint64_t index = 0;  ///< index of the first WQEBB
};

/// Range of registered memory of this rank.
struct LocalRange {
  std::uint64_t address = 0;  ///< address of the first byte, as the NIC knows it
  std::uint32_t lkey = 0;     ///< local key: names the memory to the NIC of this rank
  std::uint32_t bytes = 0;    ///< at most kWqeBytesMost; in a WQE 0 means 2 GiB
};

/// Address in registered memory of the peer.
struct RemoteAddress {
  std::uint64_t address = 0;  ///< address as the peer's NIC knows it
  std::uint32_t rkey = 0;     ///< remote key: names the memory to the peer's NIC
};

/// A WQE of kPartCount parts, in registers until it is stored.
template <std::uint32_t kPartCount>
struct Wqe {
  static constexpr std::uint32_t kParts = kPartCount;  ///< number of parts
  /// Number of WQEBBs.
  static constexpr std::uint32_t kWqebbs = divide_up(kPartCount, kPartsPerWqebb);
  Pack part[kPartCount];  ///< the parts, big-endian; the first is the control segment
};

/// Builds the control segment, the first part of every WQE. `flags` is a sum of kSignalled and
/// kFenced.
constexpr ORIEL_DEVICE_FN Pack control_part(Opcode opcode, std::uint32_t modifier, Place place,
                                            std::uint32_t parts, std::uint32_t flags,
                                            std::uint32_t immediate = 0) {
  const std::uint32_t index = static_cast<std::uint32_t>(place.index & 0xffffu);
  return detail::big_endian_part(modifier << 24 | index << 8 | static_cast<std::uint32_t>(opcode),
                                 place.queue << 8 | parts, flags, immediate);
}

/// Builds the part that names memory of the peer.
constexpr ORIEL_DEVICE_FN Pack remote_part(RemoteAddress remote) {
  return detail::big_endian_part(detail::high(remote.address), detail::low(remote.address),
                                 remote.rkey, 0);
}

/// Builds the part that names memory of this rank.
constexpr ORIEL_DEVICE_FN Pack local_part(LocalRange local) {
  return detail::big_endian_part(local.bytes, local.lkey, detail::high(local.address),
                                 detail::low(local.address));
}

/// Builds a WQE that moves data. `opcode` is write, write_immediate or read.
constexpr ORIEL_DEVICE_FN Wqe<3> transfer_wqe(Opcode opcode, Place place, std::uint32_t flags,
                                              RemoteAddress remote, LocalRange local,
                                              std::uint32_t immediate = 0) {
  return {{control_part(opcode, 0, place, 3, flags, immediate), remote_part(remote),
           local_part(local)}};
}

/// Maximum number of bytes that a write can carry inline, in its own WQEBB.
inline constexpr std::uint32_t kInlineBytesMost = 28;
inline constexpr std::uint32_t kInlineWords = kInlineBytesMost / 4;  ///< words of these bytes

/// 1 to 28 bytes of inline data, padded with zeros, as words whose bytes are in memory order.
/// A source aligned to 8 bytes is read in 8-byte words, and one aligned to 4 bytes in 4-byte words.
/// One access reads each whole word, so no such word is torn while another thread stores it. An
/// 8-byte word of a source aligned to only 4 bytes may be torn.
struct InlineBytes {
  /// Words of the data. The last word is always zero and makes the number even.
  std::uint32_t word[kInlineWords + 1] = {};
  std::uint32_t bytes = 0;  ///< number of bytes of data

  /// Reads `count` bytes at `from`, at most kInlineBytesMost (not checked), in weak order. One
  /// thread; not blocking.
  ORIEL_DEVICE_FN InlineBytes(const unsigned char* from, std::uint32_t count) : bytes(count) {
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    ORIEL_DEVICE_UNROLL
    for (std::uint32_t i = 0; i < kInlineWords; i += 2) {
      if (i * 4 >= count) continue;  // no address either: `from` may be null if count is 0
      const std::uint32_t left = count - i * 4;
      if (left >= 8 && address % 8 == 0) {
        const auto pair = read<std::uint64_t>(from + i * 4);
        word[i] = static_cast<std::uint32_t>(pair);
        word[i + 1] = static_cast<std::uint32_t>(pair >> 32);
      } else {
        word[i] = read_word(from + i * 4, left);
        word[i + 1] = read_word(from + i * 4 + 4, left > 4 ? left - 4 : 0);
      }
    }
  }

 private:
  template <class Word>
  static ORIEL_DEVICE_FN Word read(const unsigned char* from) {
    Word word;
    __builtin_memcpy(&word, __builtin_assume_aligned(from, sizeof word), sizeof word);
    return word;
  }
  static ORIEL_DEVICE_FN std::uint32_t read_word(const unsigned char* from, std::uint32_t left) {
    if (left >= 4 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
      return read<std::uint32_t>(from);
    }
    std::uint32_t word = 0;
    ORIEL_DEVICE_UNROLL
    for (std::uint32_t k = 0; k < 4; ++k) {
      if (k < left) word |= static_cast<std::uint32_t>(from[k]) << (k * 8);
    }
    return word;
  }
};

/// Builds a write of inline data.
ORIEL_DEVICE_FN Wqe<4> inline_write_wqe(Place place, std::uint32_t flags, RemoteAddress remote,
                                        const InlineBytes& from) {
  const std::uint32_t parts = from.bytes <= 12 ? 3 : 4;
  return {{control_part(Opcode::write, 0, place, parts, flags), remote_part(remote),
           Pack{{big_endian(from.bytes | 0x80000000u), from.word[0], from.word[1], from.word[2]}},
           Pack{{from.word[3], from.word[4], from.word[5], from.word[6]}}}};
}

/// Builds an addition to 8 bytes; the old value is stored to `old`.
constexpr ORIEL_DEVICE_FN Wqe<4> fetch_add_wqe(Place place, std::uint32_t flags,
                                               RemoteAddress remote, std::uint64_t add,
                                               LocalRange old) {
  return {{control_part(Opcode::fetch_add, 0, place, 4, flags), remote_part(remote),
           detail::big_endian_part(add, std::uint64_t{0}), local_part(old)}};
}

/// Builds a WQE that stores `swap` if the 8 bytes equal `compare`; the old value is stored to
/// `old`.
constexpr ORIEL_DEVICE_FN Wqe<4> compare_swap_wqe(Place place, std::uint32_t flags,
                                                  RemoteAddress remote, std::uint64_t swap,
                                                  std::uint64_t compare, LocalRange old) {
  return {{control_part(Opcode::compare_swap, 0, place, 4, flags), remote_part(remote),
           detail::big_endian_part(swap, compare), local_part(old)}};
}

/// Builds an addition to 4 bytes in fields: no carry leaves a bit whose `boundary` is 1. A boundary
/// of 0 gives an addition, a boundary of all ones an exclusive or. The old value is stored to
/// `old`.
constexpr ORIEL_DEVICE_FN Wqe<4> masked_fetch_add_wqe(Place place, std::uint32_t flags,
                                                      RemoteAddress remote, std::uint32_t add,
                                                      std::uint32_t boundary, LocalRange old) {
  return {{control_part(Opcode::masked_fetch_add, kMasked4Bytes, place, 4, flags),
           remote_part(remote), detail::big_endian_part(add, boundary, 0, 0), local_part(old)}};
}
/// Builds an addition to 8 bytes in fields, as above.
constexpr ORIEL_DEVICE_FN Wqe<4> masked_fetch_add_wqe(Place place, std::uint32_t flags,
                                                      RemoteAddress remote, std::uint64_t add,
                                                      std::uint64_t boundary, LocalRange old) {
  return {{control_part(Opcode::masked_fetch_add, kMasked8Bytes, place, 4, flags),
           remote_part(remote), detail::big_endian_part(add, boundary), local_part(old)}};
}

/// Operands of a masked compare-and-swap. If memory equals `compare` in the bits of `compare_mask`,
/// the bits of `swap_mask` are replaced by those of `swap`.
template <class T>
struct MaskedSwap {
  T swap = 0;          ///< new bits
  T compare = 0;       ///< expected bits
  T swap_mask = 0;     ///< bits that are replaced
  T compare_mask = 0;  ///< bits that are compared; 0: always replaces
};

/// Builds a masked compare-and-swap of 4 bytes; the old value is stored to `old`.
constexpr ORIEL_DEVICE_FN Wqe<4> masked_compare_swap_wqe(Place place, std::uint32_t flags,
                                                         RemoteAddress remote,
                                                         MaskedSwap<std::uint32_t> operands,
                                                         LocalRange old) {
  return {{control_part(Opcode::masked_compare_swap, kMasked4Bytes, place, 4, flags),
           remote_part(remote),
           detail::big_endian_part(operands.swap, operands.compare, operands.swap_mask,
                                   operands.compare_mask),
           local_part(old)}};
}
/// Builds a masked compare-and-swap of 8 bytes, as above. Takes two WQEBBs; it is the only WQE here
/// with more than one.
constexpr ORIEL_DEVICE_FN Wqe<5> masked_compare_swap_wqe(Place place, std::uint32_t flags,
                                                         RemoteAddress remote,
                                                         MaskedSwap<std::uint64_t> operands,
                                                         LocalRange old) {
  return {{control_part(Opcode::masked_compare_swap, kMasked8Bytes, place, 5, flags),
           remote_part(remote), detail::big_endian_part(operands.swap, operands.compare),
           detail::big_endian_part(operands.swap_mask, operands.compare_mask), local_part(old)}};
}

/// Builds a WQE that does nothing, in order.
constexpr ORIEL_DEVICE_FN Wqe<1> nop_wqe(Place place, std::uint32_t flags) {
  return {{control_part(Opcode::nop, 0, place, 1, flags)}};
}

/// Builds a WQE that reads `local` and drops the bytes (Opcode::dump).
constexpr ORIEL_DEVICE_FN Wqe<2> dump_wqe(Place place, std::uint32_t flags, LocalRange local) {
  return {{control_part(Opcode::dump, 0, place, 2, flags), local_part(local)}};
}

}  // namespace oriel::device::queue
