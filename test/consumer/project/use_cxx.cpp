// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Adds four numbers on two threads through the C++ interface of an installed Oriel.
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include <oriel/communicator.hpp>
#include <oriel/error.hpp>
#include <oriel/version.hpp>

namespace {

bool add_up(const oriel::UniqueId& id, int rank) {
  auto comm = oriel::Communicator::init(id, rank, 2);
  if (!comm.ok()) return false;
  std::array<float, 4> data{};
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i) + 10.0f * rank;
  const auto added =
      comm.value().all_reduce({.input = data.data(), .output = data.data(), .count = data.size()});
  return added.ok() && data == std::array<float, 4>{10, 12, 14, 16};
}

}  // namespace

int main() {
  const oriel::Error error =
      oriel::Error(oriel::ErrorCode::remote, "gone").with_origin(3).with_hint("look there");
  if (error.to_string() != "rank 3: gone; hint: look there") return 1;
  if (std::strlen(oriel::version()) == 0) return 2;
  const auto id = oriel::UniqueId::create();
  if (!id.ok()) return 3;
  bool other_added = false;
  std::jthread other([&] { other_added = add_up(id.value(), 1); });
  const bool added = add_up(id.value(), 0);
  other.join();
  if (!added || !other_added) return 4;
  std::printf("oriel %s through C++: two ranks have added\n", oriel::version());
  return 0;
}
