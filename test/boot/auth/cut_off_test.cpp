// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/cut_off.hpp"

#include <vector>

#include <catch2/catch.hpp>

namespace oriel::boot {
namespace {

constexpr auto kUnknown = HostSight::unknown, kAnswers = HostSight::answers,
               kSilent = HostSight::silent, kSlow = HostSight::slow;

using Sights = std::vector<HostSight>;

}  // namespace

TEST_CASE("of two hosts neither can tell who is cut off, and each names the other at once",
          "[req:3.19]") {
  for (const HostSight sight : {kUnknown, kSilent}) {
    CHECK(find_cut_off(Sights{sight}, 0, false) == CutOff::peer);
  }
}

TEST_CASE("of three hosts the one that hears nobody names itself, as soon as it knows",
          "[req:3.19]") {
  CHECK(find_cut_off(Sights{kSilent, kUnknown}, 0, false) == CutOff::undecided);
  CHECK(find_cut_off(Sights{kUnknown, kUnknown}, 0, false) == CutOff::undecided);
  CHECK(find_cut_off(Sights{kSilent, kSilent}, 0, false) == CutOff::self);
  CHECK(find_cut_off(Sights{kSilent, kUnknown}, 0, true) == CutOff::self);
  CHECK(find_cut_off(Sights{kUnknown, kUnknown}, 1, true) == CutOff::self);
  for (const bool is_late : {false, true}) {
    CHECK(find_cut_off(Sights{kSilent, kAnswers}, 0, is_late) == CutOff::peer);
    CHECK(find_cut_off(Sights{kAnswers, kUnknown}, 1, is_late) == CutOff::peer);
  }
}

TEST_CASE("a host that has answered while the other was silent is waited for", "[req:3.19]") {
  for (const bool is_late : {false, true}) {
    CHECK(find_cut_off(Sights{kSilent, kSlow}, 0, is_late) == CutOff::undecided);
    CHECK(find_cut_off(Sights{kUnknown, kSlow, kSlow}, 0, is_late) == CutOff::undecided);
    CHECK(find_cut_off(Sights{kSilent, kSlow, kAnswers, kAnswers}, 0, is_late) == CutOff::peer);
    CHECK(find_cut_off(Sights{kSilent, kSlow, kSilent, kSilent}, 0, is_late) == CutOff::self);
  }
}

TEST_CASE("a rank whose host answers otherwise is named, whatever else is silent", "[req:3.19]") {
  CHECK(find_cut_off(Sights{kSilent, kAnswers, kSilent, kSilent}, 1, false) == CutOff::peer);
}

TEST_CASE("however hosts are divided, ranks of the smaller side name their own", "[req:3.19]") {
  for (std::size_t hosts = 2; hosts <= 9; ++hosts) {
    for (std::size_t own = 1; own < hosts; ++own) {
      INFO(own << " of " << hosts);
      Sights sights(hosts - 1, kSilent);
      for (std::size_t i = 0; i + 1 < own; ++i) sights[i] = kAnswers;
      const CutOff expected = own < hosts - own ? CutOff::self : CutOff::peer;
      CHECK(find_cut_off(sights, hosts - 2, false) == expected);
      // A host that has not answered in time counts like a silent one.
      for (HostSight& sight : sights) sight = sight == kSilent ? kUnknown : sight;
      CHECK(find_cut_off(sights, hosts - 2, true) == expected);
    }
  }
}

}  // namespace oriel::boot
