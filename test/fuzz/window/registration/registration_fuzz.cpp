// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "fuzz/input.hpp"
#include "window/registration/registration.hpp"

using namespace oriel;
using namespace oriel::window;

namespace {

bool is_same(const Bytes& bytes, ByteView input) {
  return std::equal(bytes.begin(), bytes.end(), input.begin(), input.end());
}

/// Decodes the details of two ranks; the derived layout stays inside its places.
void check_details(ByteView first, ByteView second, std::span<const WindowRequest> requests) {
  std::vector<RankDetails> details;
  for (const ByteView input : {first, second}) {
    auto decoded = decode_details(input, requests);
    if (!decoded.ok()) return;
    expect(is_same(encode(decoded.value()), input));
    details.push_back(std::move(decoded).value());
  }
  const std::array<int, 2> ranks = {3, 5};
  const auto plan = make_plan(details, ranks);
  if (!plan.ok()) return;
  expect(plan->windows.size() == requests.size());
  for (const Plan::Window& window : plan->windows) expect(window.mapping < plan->mappings.size());
  const std::vector<bool> all(plan->mappings.size(), true);
  const Layout layout = lay_out(plan.value(), all);
  std::size_t end = 0;
  for (std::size_t i = 0; i < plan->mappings.size(); ++i) {
    expect(layout.offsets[i] >= end);
    end = layout.offsets[i] + extent_bytes(plan->mappings[i]);
    expect(end > layout.offsets[i] && end <= layout.bytes);
  }
  const std::array<int, 2> slots = {0, 1};
  expect(allocations_of(plan.value(), all, slots).empty() == requests.empty());
}

/// Decodes the places that two ranks propose.
void check_places(ByteView first, ByteView second, std::size_t mappings) {
  std::vector<PlaceMessage> places;
  for (const ByteView input : {first, second}) {
    auto decoded = decode_place(input, mappings);
    if (!decoded.ok()) return;
    expect(is_same(encode(decoded.value()), input));
    if (decoded->failed) return;
    places.push_back(std::move(decoded).value());
  }
  expect(mappings_to_make(places, mappings).size() == mappings);
  PlaceSearch search{.bytes = 4096};
  const auto place = settle(search, places);
  if (!place.has_value()) return;
  for (const PlaceMessage& one : places) expect(one.proposal.offset == *place && one.bytes == 4096);
}

void check_offer(ByteView input, std::size_t handles) {
  const auto offer = decode_offer(input, handles);
  if (!offer.ok()) return;
  expect(offer->failed ? offer->handles.empty() : offer->handles.size() == handles);
  expect(is_same(encode(offer.value()), input));
}

}  // namespace

// The first byte is the expected number of windows, mappings and handles. The next two are the
// offset at which the first of two ranks' messages ends.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::size_t count = data[0] % 4;
  const ByteView input = view(data + 3, size - 3);
  const std::size_t cut = std::min<std::size_t>(input.size(), data[1] + 256u * data[2]);
  const std::vector<WindowRequest> requests(count,
                                            WindowRequest{.pointer = nullptr, .bytes = 5000});
  check_details(input.first(cut), input.subspan(cut), requests);
  check_places(input.first(cut), input.subspan(cut), count);
  check_offer(input, count);
  return 0;
}
