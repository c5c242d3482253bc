// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/drawn_calls.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>

#include <fmt/format.h>

#include "comm/communicator/all_reduce_reference.hpp"
#include "comm/communicator/random_all_reduces.hpp"

namespace oriel::test {

using kernels::Collective;

bool DrawnCollective::sends(int rank) const {
  const bool only_root = collective == Collective::broadcast || collective == Collective::scatter;
  return !only_root || rank == root;
}

bool DrawnCollective::receives(int rank) const {
  const bool only_root = collective == Collective::reduce || collective == Collective::gather;
  return !only_root || rank == root;
}

std::size_t DrawnCollective::sent_bytes() const {
  return bytes() * (sends_blocks(collective) ? static_cast<std::size_t>(size) : 1);
}

std::size_t DrawnCollective::received_bytes() const {
  return bytes() * (receives_blocks(collective) ? static_cast<std::size_t>(size) : 1);
}

std::string DrawnCollective::text() const {
  return fmt::format(
      "{} of {} x {} ({}) among {} ranks, root {}, in place {}, inputs {}, seed {:#x}",
      name_of(collective), count, name_of(type), name_of(op), size, root, in_place,
      static_cast<int>(inputs), seed);
}

std::vector<std::byte> DrawnMessage::data() const {
  std::vector<std::byte> data(bytes());
  fill_elements(type, Inputs::any_bits, seed, data.data(), count);
  return data;
}

std::string DrawnMessage::text() const {
  return fmt::format("a message of {} x {} from rank {} to {}, seed {:#x}", count, name_of(type),
                     from, to, seed);
}

namespace {

std::size_t draw_bytes(std::mt19937_64& rng, bool is_large) {
  if (is_large) return rng() % 4 == 0 ? 400'001 : 65'500 + rng() % 40'000;
  const std::size_t small[] = {0, 8, 24, rng() % 300, rng() % 300, rng() % 6'000};
  return small[rng() % std::size(small)];
}

}  // namespace

DrawnCollective draw_collective(std::uint64_t seed, int size, const DrawLimits& limits) {
  std::mt19937_64 rng(seed);
  DrawnCollective call{.size = size, .seed = seed};
  call.collective = static_cast<Collective>(rng() % kernels::kCollectiveCount);
  call.type = static_cast<DataType>(rng() % kDataTypeCount);
  const auto op = static_cast<ReduceOp>(rng() % kReduceOpCount);
  if (reduces(call.collective)) call.op = op;
  const Inputs inputs[] = {Inputs::moderate, Inputs::any_bits, Inputs::edges};
  call.inputs = limits.any_inputs ? inputs[rng() % 3] : Inputs::moderate;
  call.count = draw_bytes(rng, limits.is_large) / size_of(call.type);
  const auto root = static_cast<int>(rng() % static_cast<std::uint64_t>(size));
  if (has_root(call.collective)) call.root = root;
  call.in_place = rng() % 2 == 0 && call.collective != Collective::all_to_all;
  return call;
}

std::vector<DrawnMessage> draw_messages(std::uint64_t seed, int size, const DrawLimits& limits) {
  std::mt19937_64 rng(seed);
  std::vector<DrawnMessage> messages;
  const auto add = [&](int from, int to, std::size_t bytes) {
    const auto type = static_cast<DataType>(rng() % kDataTypeCount);
    messages.push_back({from, to, type, bytes / size_of(type), rng()});
  };
  const auto any_rank = [&] { return static_cast<int>(rng() % static_cast<std::uint64_t>(size)); };
  const std::uint64_t pattern = rng() % 32;
  if (pattern < 18) {
    const int from = any_rank();
    add(from, any_rank(), draw_bytes(rng, limits.is_large));
  } else if (pattern < 26) {
    const std::size_t bytes = draw_bytes(rng, limits.is_large);
    const int distance = any_rank();
    for (int rank = 0; rank < size; ++rank) add(rank, (rank + distance) % size, bytes);
  } else {
    const int per_pair = pattern == 26 ? 80 : 2;
    for (int pair = 0; pair < size * size * per_pair; ++pair) {
      add(pair % size, pair / size % size, pattern == 26 ? rng() % 50 : draw_bytes(rng, false));
    }
  }
  return messages;
}

CollectiveReference::CollectiveReference(const DrawnCollective& call) : call_(call) {
  for (int rank = 0; rank < call.size; ++rank) {
    inputs_.emplace_back(call.sent_bytes());
    fill_elements(call.type, call.inputs, mix(call.seed, at(rank)), inputs_.back().data(),
                  call.sent_bytes() / size_of(call.type));
    std::byte scalar[8] = {};
    fill_elements(call.type, Inputs::moderate, mix(call.seed, at(rank) + 77), scalar, 1);
    std::memcpy(&scalars_.emplace_back(0), scalar, sizeof scalar);
  }
}

std::string CollectiveReference::compare(int rank, const std::byte* output, bool exact) const {
  if (call_.count == 0) return {};
  if (reduces(call_.collective)) return compare_sums(rank, output, exact);
  const std::vector<std::byte> expected = moved_to(rank);
  const auto wrong = std::mismatch(expected.begin(), expected.end(), output).first;
  return wrong == expected.end() ? "" : fmt::format("byte {}", wrong - expected.begin());
}

std::string CollectiveReference::compare_sums(int rank, const std::byte* output, bool exact) const {
  const std::size_t first = sends_blocks(call_.collective) ? at(rank) * call_.bytes() : 0;
  std::vector<const std::byte*> arrays;
  for (const auto& input : inputs_) arrays.push_back(input.data() + first);
  if (!exact) {
    for (std::size_t i = 0; i < call_.count; i += 1 + call_.count / 30) {
      auto wrong = compare_with_exact(call_.type, call_.op, arrays, scalars_, i, output);
      if (!wrong.empty()) return fmt::format("element {} is {}", i, wrong);
    }
    return {};
  }
  std::vector<std::byte> expected(call_.bytes());
  reduce_arrays(call_.type, call_.op, arrays, scalars_, call_.count, expected.data());
  const auto wrong = std::mismatch(expected.begin(), expected.end(), output).first;
  return wrong == expected.end() ? "" : fmt::format("a sum, at byte {}", wrong - expected.begin());
}

std::vector<std::byte> CollectiveReference::moved_to(int rank) const {
  const auto block = [&](const std::vector<std::byte>& input) {
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at(rank) * call_.bytes());
    return std::vector(begin, begin + static_cast<std::ptrdiff_t>(call_.bytes()));
  };
  if (call_.collective == Collective::broadcast) return input(call_.root);
  if (call_.collective == Collective::scatter) return block(input(call_.root));
  std::vector<std::byte> all;
  for (const auto& input : inputs_) {
    const auto part = call_.collective == Collective::all_to_all ? block(input) : input;
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace oriel::test
