// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/cut_off.hpp"

#include <vector>

#include <catch2/catch.hpp>

namespace oriel::boot {
namespace {

constexpr auto kUnknown = HostState::unknown, kAnswers = HostState::answers,
               kSilent = HostState::silent, kSlow = HostState::slow;

using States = std::vector<HostState>;

}  // namespace

TEST_CASE("a host whose only peer is silent or unknown names that peer at once", "[req:3.19]") {
  for (const HostState state : {kUnknown, kSilent}) {
    CHECK(find_cut_off(States{state}, 0, false) == CutOff::peer);
  }
}

TEST_CASE("one host of three names itself cut off once it knows that no other host answers",
          "[req:3.19]") {
  CHECK(find_cut_off(States{kSilent, kUnknown}, 0, false) == CutOff::undecided);
  CHECK(find_cut_off(States{kUnknown, kUnknown}, 0, false) == CutOff::undecided);
  CHECK(find_cut_off(States{kSilent, kSilent}, 0, false) == CutOff::self);
  CHECK(find_cut_off(States{kSilent, kUnknown}, 0, true) == CutOff::self);
  CHECK(find_cut_off(States{kUnknown, kUnknown}, 1, true) == CutOff::self);
  for (const bool is_late : {false, true}) {
    CHECK(find_cut_off(States{kSilent, kAnswers}, 0, is_late) == CutOff::peer);
    CHECK(find_cut_off(States{kAnswers, kUnknown}, 1, is_late) == CutOff::peer);
  }
}

TEST_CASE("a host that has answered while the other was silent is waited for", "[req:3.19]") {
  for (const bool is_late : {false, true}) {
    CHECK(find_cut_off(States{kSilent, kSlow}, 0, is_late) == CutOff::undecided);
    CHECK(find_cut_off(States{kUnknown, kSlow, kSlow}, 0, is_late) == CutOff::undecided);
    CHECK(find_cut_off(States{kSilent, kSlow, kAnswers, kAnswers}, 0, is_late) == CutOff::peer);
    CHECK(find_cut_off(States{kSilent, kSlow, kSilent, kSilent}, 0, is_late) == CutOff::self);
  }
}

TEST_CASE("a rank whose host answers otherwise is named, whatever else is silent", "[req:3.19]") {
  CHECK(find_cut_off(States{kSilent, kAnswers, kSilent, kSilent}, 1, false) == CutOff::peer);
}

TEST_CASE("however hosts are divided, ranks of the smaller side name their own", "[req:3.19]") {
  for (std::size_t hosts = 2; hosts <= 9; ++hosts) {
    for (std::size_t own = 1; own < hosts; ++own) {
      INFO(own << " of " << hosts);
      States states(hosts - 1, kSilent);
      for (std::size_t i = 0; i + 1 < own; ++i) states[i] = kAnswers;
      const CutOff expected = own < hosts - own ? CutOff::self : CutOff::peer;
      CHECK(find_cut_off(states, hosts - 2, false) == expected);
      // A host that has not answered in time counts like a silent one.
      for (HostState& state : states) state = state == kSilent ? kUnknown : state;
      CHECK(find_cut_off(states, hosts - 2, true) == expected);
    }
  }
}

}  // namespace oriel::boot
