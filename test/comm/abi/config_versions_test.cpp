// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

#include "base/log.hpp"
#include "base/settings.hpp"
#include "comm/abi/nccl_config.hpp"
#include "comm/communicator/communicator_start.hpp"
#include "comm/support/held.hpp"
#include "support/ranks.hpp"

/// Configurations of programs that were built with other versions of NCCL, and hints.
namespace oriel::test {
namespace {

/// A member of ncclConfig_t after `version`, laid out as in NCCL's headers.
struct Member {
  const char* name;
  std::size_t offset;
  unsigned since;
  bool is_text = false;
};

constexpr Member kMembers[] = {
    {"blocking", 16, 21403},
    {"cgaClusterSize", 20, 21701},
    {"minCTAs", 24, 21701},
    {"maxCTAs", 28, 21701},
    {"netName", 32, 21701, true},
    {"splitShare", 40, 21801},
    {"trafficClass", 44, 22602},
    {"commName", 48, 22703, true},
    {"collnetEnable", 56, 22703},
    {"CTAPolicy", 60, 22703},
    {"shrinkShare", 64, 22703},
    {"nvlsCTAs", 68, 22703},
    {"nChannelsPerNetPeer", 72, 22803},
    {"nvlinkCentricSched", 76, 22803},
    {"graphUsageMode", 80, 22902},
    {"numRmaCtx", 84, 22902},
    {"maxP2pPeers", 88, 23003},
    {"graphStreamOrdering", 92, 23005},
    {"launchOrderImplicit", 96, 23102},
    {"numRmaSig", 100, 23102},
    {"rmaEagerInit", 104, 23102},
    {"hostCftMode", 108, 23102},
    {"nvlsHostMode", 112, 23203},
};

struct Version {
  unsigned number;
  std::size_t bytes;
};

constexpr Version kVersions[] = {
    {21403, 24}, {21602, 24}, {21701, 40}, {21801, 48},  {22105, 48},  {22501, 48}, {22602, 48},
    {22703, 72}, {22707, 72}, {22803, 80}, {22809, 80},  {22902, 88},  {22907, 88}, {23003, 96},
    {23004, 96}, {23005, 96}, {23007, 96}, {23102, 112}, {23203, 120},
};
constexpr Version kNewest{23203, 120};

/// Bytes of a configuration. Bytes outside the members of its version hold garbage.
class Image {
 public:
  explicit Image(const Version& version) : bytes_(version.bytes + 64, std::byte{0x5a}) {
    put(0, version.bytes);
    put(8, 0xcafebeefu);
    put(12, version.number);
    for (const Member& member : kMembers) {
      if (member.since > version.number) continue;
      REQUIRE(member.offset + (member.is_text ? sizeof(char*) : sizeof(int)) <= version.bytes);
      members_.push_back(member);
      member.is_text ? set(member, static_cast<const char*>(nullptr)) : set(member, INT_MIN);
    }
  }

  const std::vector<Member>& members() const { return members_; }
  template <typename T>
  void set(const Member& member, T value) {
    put(member.offset, value);
  }
  ncclConfig_t* get() { return reinterpret_cast<ncclConfig_t*>(bytes_.data()); }

 private:
  template <typename T>
  void put(std::size_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }

  std::vector<std::byte> bytes_;
  std::vector<Member> members_;
};

/// Returns true if the library obeys the field, so that the field is no mere hint.
bool is_honoured(const Member& member) {
  const std::string name = member.name;
  return name == "blocking" || name == "minCTAs" || name == "maxCTAs" || name == "commName" ||
         name == "CTAPolicy";
}

std::vector<std::string> lines_about_configs(const std::string& path) {
  std::vector<std::string> found;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("ncclConfig_t") != std::string::npos || line.find("CTAs is") != std::string::npos)
      found.push_back(line);
  }
  return found;
}

/// Runs `body` in a process that logs at `level`. Returns its log lines about configurations.
std::vector<std::string> log_of(const std::string& level, const std::function<void()>& body) {
  char path[] = "/tmp/oriel-config-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  ::close(fd);
  run_alone([&] {
    const Environment environment(Variables{{"ORIEL_LOG", level}, {"ORIEL_LOG_FILE", path}});
    reread_log_settings();
    body();
  });
  const auto lines = lines_about_configs(path);
  std::filesystem::remove(path);
  return lines;
}

void start_with(ncclConfig_t* config) {
  ncclComm_t comm = nullptr;
  require(ncclCommInitRankConfig(&comm, 1, new_id(), 0, config), "ncclCommInitRankConfig");
  require_sum(std::vector<ncclComm_t>{comm});
  require(ncclCommDestroy(comm), "ncclCommDestroy");
}

TEST_CASE("a configuration of any version that sets nothing is accepted, its padding is not read",
          "[req:5.17]") {
  for (const Version& version : kVersions) {
    INFO("version " << version.number);
    const auto lines = log_of("info", [&] {
      Image image(version);
      start_with(image.get());
    });
    CHECK(lines == std::vector<std::string>{});
  }
}

TEST_CASE("the hints of every version are accepted, each set one has a line of the log",
          "[req:5.17]") {
  for (const Version& version : kVersions) {
    INFO("version " << version.number);
    std::vector<std::string> expected;
    Image image(version);
    for (const Member& member : image.members()) {
      if (is_honoured(member)) continue;
      if (member.is_text) {
        image.set(member, "a net");
        expected.push_back(fmt::format("ncclConfig_t::{} is \"a net\": ignored, ", member.name));
      } else {
        image.set(member, 3);
        expected.push_back(fmt::format("ncclConfig_t::{} is 3: ignored, ", member.name));
      }
    }
    const auto lines = log_of("info", [&] { start_with(image.get()); });
    CHECK(lines.size() == expected.size());
    for (const std::string& words : expected) {
      INFO(words);
      CHECK(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
              return line.find(words) != std::string::npos &&
                     line.find("INFO") != std::string::npos;
            }) == 1);
    }
  }
}

TEST_CASE("a hint alone, of any value, starts a communicator and prints nothing by default",
          "[req:5.17][promise:9]") {
  const auto lines = log_of("", [] {
    for (const Member& member : kMembers) {
      if (is_honoured(member) || member.is_text) continue;
      for (const int value : {-7, 0, 1, 2, INT_MAX}) {
        Image image(kNewest);
        image.set(member, value);
        start_with(image.get());
      }
    }
  });
  CHECK(lines == std::vector<std::string>{});
}

TEST_CASE("a configuration longer than any known one is accepted, one warning names both sizes",
          "[req:5.17]") {
  const auto lines = log_of("", [] {
    for (int i = 0; i < 3; ++i) {
      Image image({24001, 144});
      start_with(image.get());
    }
  });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("WARN") != std::string::npos);
  CHECK(lines[0].find("144 bytes") != std::string::npos);
  CHECK(lines[0].find("120 bytes") != std::string::npos);
}

TEST_CASE("numbers of CTAs out of range start a communicator, the log says what is used",
          "[req:5.17]") {
  struct Case {
    int min, max;
    std::vector<std::string> words;
  };
  constexpr int kUnset = NCCL_CONFIG_UNDEF_INT;
  const Case cases[] = {
      {0, kUnset, {"minCTAs is 0: taken as 1,"}},
      {-5, kUnset, {"minCTAs is -5: taken as 1,"}},
      {kUnset, 0, {"maxCTAs is 0: taken as 1,"}},
      {kUnset, 5000, {"maxCTAs is 5000: taken as 1024,"}},
      {5000, 1, {"minCTAs is 5000: taken as 1024,", "minCTAs is 1024: taken as 1,"}},
      {8, kUnset, {"minCTAs is 8: taken as 1, the most that a collective can use here"}},
      {1, 16, {}},
  };
  for (const Case& given : cases) {
    INFO("minCTAs " << given.min << ", maxCTAs " << given.max);
    const auto lines = log_of("info", [&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.minCTAs = given.min;
      config.maxCTAs = given.max;
      start_with(&config);
    });
    REQUIRE(lines.size() == given.words.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      INFO(lines[i]);
      CHECK(lines[i].find(given.words[i]) != std::string::npos);
    }
  }
}

TEST_CASE("ranks may wish for different numbers of CTAs", "[req:5.17][promise:9]") {
  ncclComm_t comms[2] = {};
  const ncclUniqueId id = new_id();
  require(ncclGroupStart(), "ncclGroupStart");
  for (int rank = 0; rank < 2; ++rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (rank == 0) config.minCTAs = 1;
    if (rank == 1) config.maxCTAs = 8;
    require(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), "ncclCommInitRankConfig");
  }
  require(ncclGroupEnd(), "ncclGroupEnd");
  require_sum(std::vector<ncclComm_t>{comms[0], comms[1]});
  for (const ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
}

TEST_CASE("the setting and two fields take the order of graphs away, other values do not",
          "[req:5.4][D2]") {
  using comm::GraphOrder;
  constexpr int kUnset = NCCL_CONFIG_UNDEF_INT;
  constexpr auto kAuto = GraphMixing::automatic;
  struct Case {
    int usage, ordering;
    GraphMixing setting;
    GraphOrder order;
  };
  const Case cases[] = {
      {kUnset, kUnset, kAuto, GraphOrder::all},
      {2, 0, kAuto, GraphOrder::all},
      {3, 2, kAuto, GraphOrder::all},
      {1, 1, kAuto, GraphOrder::in_captures},
      {0, kUnset, kAuto, GraphOrder::in_captures},
      {1, 0, kAuto, GraphOrder::none},
      {0, 0, GraphMixing::on, GraphOrder::all},
      {2, kUnset, GraphMixing::off, GraphOrder::in_captures},
      {kUnset, 0, GraphMixing::off, GraphOrder::none},
  };
  for (const Case& given : cases) {
    INFO("graphUsageMode " << given.usage << ", graphStreamOrdering " << given.ordering);
    Image image(kNewest);
    for (const Member& member : image.members()) {
      if (std::string(member.name) == "graphUsageMode") image.set(member, given.usage);
      if (std::string(member.name) == "graphStreamOrdering") image.set(member, given.ordering);
    }
    const auto options = comm::read_config(image.get());
    REQUIRE(options.ok());
    Settings settings;
    settings.graph_mixing = given.setting;
    CHECK(comm::graph_order(settings, options.value()) == given.order);
  }
  const auto off = Settings::from_environment([](const char* name) {
    const bool is_mixing = std::string(name) == "NCCL_GRAPH_MIXING_SUPPORT";
    return is_mixing ? std::optional<std::string>("0") : std::nullopt;
  });
  REQUIRE(off.ok());
  CHECK(off.value().graph_mixing == GraphMixing::off);
}

TEST_CASE("the CTA policy asks for copy engines by its bit, the setting wins over the field",
          "[req:5.9][req:5.17]") {
  constexpr int kUnset = NCCL_CONFIG_UNDEF_INT;
  constexpr auto kAuto = CtaPolicy::automatic;
  struct Case {
    int policy;
    CtaPolicy setting;
    bool wants;
  };
  const Case cases[] = {{kUnset, kAuto, false},
                        {NCCL_CTA_POLICY_DEFAULT, kAuto, false},
                        {NCCL_CTA_POLICY_EFFICIENCY, kAuto, false},
                        {NCCL_CTA_POLICY_ZERO, kAuto, true},
                        {NCCL_CTA_POLICY_ZERO | NCCL_CTA_POLICY_EFFICIENCY, kAuto, true},
                        {6, kAuto, false},
                        {-1, kAuto, false},
                        {NCCL_CTA_POLICY_ZERO, CtaPolicy::standard, false},
                        {NCCL_CTA_POLICY_ZERO, CtaPolicy::efficiency, false},
                        {kUnset, CtaPolicy::zero, true},
                        {NCCL_CTA_POLICY_DEFAULT, CtaPolicy::zero, true}};
  for (const Case& given : cases) {
    INFO("CTAPolicy " << given.policy << ", setting " << static_cast<int>(given.setting));
    Image image(kNewest);
    for (const Member& member : image.members()) {
      if (std::string(member.name) == "CTAPolicy") image.set(member, given.policy);
    }
    const auto options = comm::read_config(image.get());
    REQUIRE(options.ok());
    Settings settings;
    settings.cta_policy = given.setting;
    CHECK(comm::wants_copy_engines(settings, options.value()) == given.wants);
  }
  const std::pair<const char*, CtaPolicy> words[] = {{"2", CtaPolicy::zero},
                                                     {"ZERO", CtaPolicy::zero},
                                                     {"Zero|Efficiency", CtaPolicy::zero},
                                                     {"3", CtaPolicy::zero},
                                                     {"0", CtaPolicy::standard},
                                                     {"DEFAULT", CtaPolicy::standard},
                                                     {"1", CtaPolicy::efficiency},
                                                     {"", CtaPolicy::automatic}};
  for (const auto& [text, policy] : words) {
    INFO(text);
    const auto settings = Settings::from_environment([text = text](const char* name) {
      const bool is_policy = std::string(name) == "NCCL_CTA_POLICY";
      return is_policy ? std::optional<std::string>(text) : std::nullopt;
    });
    REQUIRE(settings.ok());
    CHECK(settings.value().cta_policy == policy);
  }
}

TEST_CASE("a CTA policy that changes nothing starts a communicator, the log says so",
          "[req:5.17][promise:9]") {
  const std::pair<int, const char*> cases[] = {
      {NCCL_CTA_POLICY_EFFICIENCY, "CTAPolicy is 1: ignored, the measured table"},
      {8, "CTAPolicy is 8: ignored, 0 to 3 are known"}};
  for (const auto& [policy, words] : cases) {
    const auto lines = log_of("info", [policy = policy] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.CTAPolicy = policy;
      start_with(&config);
    });
    REQUIRE(lines.size() == 1);
    INFO(lines[0]);
    CHECK(lines[0].find(words) != std::string::npos);
  }
}

TEST_CASE("fields that are honoured are read from every version that has them", "[req:5.17]") {
  for (const Version& version : kVersions) {
    INFO("version " << version.number);
    run_alone([&] {
      Image image(version);
      for (const Member& member : image.members()) {
        if (std::string(member.name) == "blocking") image.set(member, 0);
        if (std::string(member.name) == "commName") image.set(member, "image");
      }
      ncclComm_t comm = nullptr;
      require(ncclCommInitRankConfig(&comm, 1, new_id(), 0, image.get()) == ncclInProgress,
              "blocking is 0");
      require(settled_state(comm) == ncclSuccess, ncclGetLastError(comm));
      if (version.number >= 22703) {
        require(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
        require_words(ncclGetLastError(comm), {"in \"image\""});
      }
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    });
  }
}

}  // namespace
}  // namespace oriel::test
