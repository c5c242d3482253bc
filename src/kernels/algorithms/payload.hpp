// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/reduction.hpp"

namespace oriel::kernels {

namespace detail {

// Loads `bytes` bytes (at most a payload) as words of 4 bytes, and sets the rest to zero. Inline,
// because short messages often end in a partial payload.
template <int kBytes>
ORIEL_DEVICE_FN PayloadWords<kBytes> load_words(const std::uint32_t* source, std::uint64_t bytes) {
  PayloadWords<kBytes> words{};
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) {
    if (static_cast<std::uint64_t>(i) * 4 < bytes) {
      words.word[i] = device::Memory::load_streaming(source + i);
    }
  }
  return words;
}

template <class T, int kBytes>
ORIEL_DEVICE_FN void store_words(std::uint32_t* target, std::uint64_t bytes,
                                 const Payload<T, kBytes>& value) {
  const auto words = __builtin_bit_cast(PayloadWords<kBytes>, value);
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) {
    if (static_cast<std::uint64_t>(i) * 4 < bytes) {
      device::Memory::store<device::Order::weak>(target + i, words.word[i]);
    }
  }
}

// Loads the first `count` elements (at most a payload of them) one by one; the rest are zero. Out
// of line, because these paths are rare and would crowd the instruction cache of the others.
template <class T, int kBytes>
ORIEL_DEVICE_SLOW PayloadWords<kBytes> load_elements(const T* source, std::uint64_t count) {
  Payload<T, kBytes> value{};
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < Payload<T, kBytes>::kCount; ++i) {
    if (static_cast<std::uint64_t>(i) < count) value.element[i] = source[i];
  }
  return __builtin_bit_cast(PayloadWords<kBytes>, value);
}

template <class T, int kBytes>
ORIEL_DEVICE_SLOW void store_elements(T* target, std::uint64_t count, Payload<T, kBytes> value) {
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < Payload<T, kBytes>::kCount; ++i) {
    if (static_cast<std::uint64_t>(i) < count) target[i] = value.element[i];
  }
}

}  // namespace detail

/// Reads and writes a user's buffer in payloads of kBytes. The buffer needs only the alignment of
/// an element, and its last payload may be partial.
template <class T, int kBytes>
class UserBuffer {
 public:
  using Value = Payload<T, kBytes>;
  using Packed = PayloadWords<kBytes>;
  static constexpr std::uint64_t kElements = static_cast<std::uint64_t>(Value::kCount);

  /// Wraps `count` elements at `address`.
  template <class Byte>
  ORIEL_DEVICE_FN UserBuffer(Byte* address, std::uint64_t count)
      : address_(reinterpret_cast<std::uintptr_t>(address)),
        count_(count),
        aligned_(address_ % kBytes == 0) {}

  ORIEL_DEVICE_FN std::uint64_t payloads() const { return device::divide_up(count_, kElements); }

  /// Returns payload `index`; elements past the end are zero.
  ORIEL_DEVICE_FN Value load(std::uint64_t index) const {
    return __builtin_bit_cast(Value, load_packed(index));
  }
  /// Returns payload `index` likewise, as words.
  ORIEL_DEVICE_FN Packed load_packed(std::uint64_t index) const {
    const std::uint64_t first = index * kElements;
    if (aligned_ && first + kElements <= count_) return load_whole(first);
    if constexpr (sizeof(T) >= 4) {
      return detail::load_words<kBytes>(
          reinterpret_cast<const std::uint32_t*>(address_ + first * sizeof(T)),
          (count_ - first) * sizeof(T));
    } else {
      return detail::load_elements<T, kBytes>(reinterpret_cast<const T*>(address_) + first,
                                              count_ - first);
    }
  }

  ORIEL_DEVICE_FN void store(std::uint64_t index, const Value& value) const {
    const std::uint64_t first = index * kElements;
    if (aligned_ && first + kElements <= count_) {
      store_whole(first, value);
      return;
    }
    if constexpr (sizeof(T) >= 4) {
      detail::store_words<T, kBytes>(reinterpret_cast<std::uint32_t*>(address_ + first * sizeof(T)),
                                     (count_ - first) * sizeof(T), value);
    } else {
      detail::store_elements<T, kBytes>(reinterpret_cast<T*>(address_) + first, count_ - first,
                                        value);
    }
  }

 private:
  using Word = std::conditional_t<kBytes == 16, device::Pack, std::uint64_t>;
  static_assert(kBytes == 16 || kBytes == 8);

  ORIEL_DEVICE_FN Packed load_whole(std::uint64_t first) const {
    const Word word =
        device::Memory::load_streaming(reinterpret_cast<const Word*>(address_ + first * sizeof(T)));
    return __builtin_bit_cast(Packed, word);
  }
  ORIEL_DEVICE_FN void store_whole(std::uint64_t first, const Value& value) const {
    device::Memory::store<device::Order::weak>(
        reinterpret_cast<Word*>(address_ + first * sizeof(T)), __builtin_bit_cast(Word, value));
  }

  std::uintptr_t address_;
  std::uint64_t count_;
  bool aligned_;
};

}  // namespace oriel::kernels
