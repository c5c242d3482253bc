// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/window.hpp"

#include <cstdint>
#include <random>

#include <catch2/catch.hpp>

#include "oriel/device/memory.hpp"

#if __has_include(<nccl_device/impl/core__types.h>)
#include <nccl_device/impl/core__types.h>  // NVIDIA's own, to compare with
#define ORIEL_TEST_HAS_NCCL_WINDOW 1
#endif

namespace oriel::test {
namespace {

using device::WindowObject;
using device::WindowView;

#if defined(ORIEL_TEST_HAS_NCCL_WINDOW)
#define ORIEL_SAME_FIELD(ours, theirs)                                     \
  static_assert(offsetof(WindowObject, ours) == offsetof(Theirs, theirs)); \
  static_assert(sizeof(WindowObject::ours) == sizeof(Theirs::theirs))
/// Compares our layout with NCCL's if its object has `ginWins`. Compares the size only for 2.28.9.
template <class Theirs>
constexpr bool compare_layouts() {
  if constexpr (requires { &Theirs::ginWins; }) {
    static_assert(NCCL_VERSION_CODE != 22809 || sizeof(Theirs) == device::kNcclWindowBytes);
    ORIEL_SAME_FIELD(host, winHost);
    ORIEL_SAME_FIELD(flat_base, lsaFlatBase);
    ORIEL_SAME_FIELD(lsa_rank, lsaRank);
    ORIEL_SAME_FIELD(world_rank, worldRank);
    ORIEL_SAME_FIELD(stride_4g, stride4G);
    ORIEL_SAME_FIELD(multicast_offset_4k, mcOffset4K);
    ORIEL_SAME_FIELD(gin_offset_4k, ginOffset4K);
    ORIEL_SAME_FIELD(gin_windows, ginWins);
  }
  return true;
}
static_assert(compare_layouts<ncclWindow_vidmem>());
#undef ORIEL_SAME_FIELD
#endif

constexpr std::uint64_t kSlotBytes = std::uint64_t{1} << 32;
// No memory lies behind these addresses; the tests only compare addresses.
char* const kFlatBase = reinterpret_cast<char*>(0x7000'0000'0000 + 0x12340000);

/// Describes rank 2 of 5, in an LSA team of world ranks 1, 2 and 4.
constexpr std::int32_t kLsaIndexOf[] = {-1, 0, 1, -1, 2};
WindowObject make_object(std::uint64_t size_bytes, std::uint32_t stride_4g) {
  WindowObject object{};
  object.flat_base = kFlatBase;
  object.lsa_rank = 1;
  object.world_rank = 2;
  object.stride_4g = stride_4g;
  object.magic = device::kWindowMagic;
  object.version = device::kWindowVersion;
  object.size_bytes = size_bytes;
  object.world_size = 5;
  object.lsa_size = 3;
  object.lsa_index_of = kLsaIndexOf;
  return object;
}

TEST_CASE("a window's peers lie one slot apart", "[req:1.22]") {
  const std::uint32_t stride = GENERATE(1u, 2u, 64u);
  const WindowObject object = make_object(1000, stride);
  const WindowView view = WindowView::of(&object);
  for (std::int32_t i = 0; i < 3; ++i) {
    const std::uint64_t distance = static_cast<std::uint32_t>(i) * (stride * kSlotBytes);
    CHECK(view.lsa_peer(i, 24, 8) == kFlatBase + distance + 24);
  }
  CHECK(view.local(24, 8) == view.lsa_peer(1, 24, 8));
  CHECK(view.world_peer(1, 24, 8) == view.lsa_peer(0, 24, 8));
  CHECK(view.world_peer(2, 24, 8) == view.local(24, 8));
  CHECK(view.world_peer(4, 24, 8) == view.lsa_peer(2, 24, 8));
}

TEST_CASE("ranks out of reach or out of range give null", "[req:1.22]") {
  const WindowObject object = make_object(1000, 1);
  const WindowView view = WindowView::of(&object);
  for (const int rank : {0, 3, 5, 6, -1, INT32_MAX, INT32_MIN}) {
    CHECK(view.world_peer(rank, 0, 1) == nullptr);
  }
  for (const int index : {3, 4, -1, INT32_MAX, INT32_MIN}) {
    CHECK(view.lsa_peer(index, 0, 1) == nullptr);
  }
}

TEST_CASE("ranges that leave the window give null", "[req:1.22]") {
  const WindowObject object = make_object(1000, 1);
  const WindowView view = WindowView::of(&object);
  CHECK(view.local(0, 1000) != nullptr);
  CHECK(view.local(999, 1) != nullptr);
  CHECK(view.local(999, 0) != nullptr);
  CHECK(view.local(1000, 0) == nullptr);
  CHECK(view.local(0, 1001) == nullptr);
  CHECK(view.local(999, 2) == nullptr);
  CHECK(view.local(1000, 1) == nullptr);
  CHECK(view.local(UINT64_MAX, 1) == nullptr);
  CHECK(view.local(UINT64_MAX, 2) == nullptr);
  CHECK(view.local(1, UINT64_MAX) == nullptr);
  CHECK(view.local(kSlotBytes, 1) == nullptr);
}

TEST_CASE("whatever is asked for, no address outside the rank's window is given", "[req:1.22]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  int given = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t size = random() >> (random() % 40 + 24);
    const WindowObject object = make_object(size, 1u << (random() % 4));
    const WindowView view = WindowView::of(&object);
    const std::uint64_t offset = random() >> (random() % 64);
    const std::uint64_t bytes = random() >> (random() % 64);
    const int rank = static_cast<int>(random() % 9) - 2;
    const auto* address = static_cast<char*>(view.world_peer(rank, offset, bytes));
    if (address == nullptr) continue;
    ++given;
    const char* first = kFlatBase + std::uint64_t{object.stride_4g} * kSlotBytes *
                                        static_cast<std::uint64_t>(kLsaIndexOf[rank]);
    const auto at = static_cast<std::uint64_t>(address - first);
    if (at >= size || bytes > size - at) FAIL("offset " << offset << ", " << bytes << " bytes");
  }
  CHECK(given > 1000);
}

TEST_CASE("a handle that is no window of Oriel gives an empty view", "[req:1.22]") {
  CHECK(WindowView::of(static_cast<const WindowObject*>(nullptr)).local(0, 1) == nullptr);
  WindowObject object = make_object(1000, 1);
  object.magic = 0;
  CHECK(WindowView::of(&object).local(0, 1) == nullptr);
  object = make_object(1000, 1);
  object.version = device::kWindowVersion + 1;
  CHECK(WindowView::of(&object).local(0, 1) == nullptr);
  CHECK(WindowView{}.world_peer(0, 0, 0) == nullptr);
}

}  // namespace
}  // namespace oriel::test
