// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/abi/nccl_config.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

constexpr unsigned kMagic = 0xcafebeef;
// Sizes of ncclConfig_t in NCCL 2.14, the first version that has it, and in kLargestVersion, the
// last version known here.
constexpr std::size_t kSmallestConfig = 24;
constexpr std::size_t kLargestConfig = 120;
constexpr const char* kLargestVersion = "2.32.3";
constexpr int kMostCtas = 1024;

/// Field of ncclConfig_t, and the first version that has it. An older structure may have padding
/// with arbitrary bytes in its place.
struct Field {
  const char* name;
  std::size_t offset;
  unsigned since;
};

/// Field that only tunes a mechanism which Oriel implements differently.
struct Hint {
  Field field;
  const char* why_ignored;
};

constexpr Field kBlocking{"blocking", offsetof(ncclConfig_t, blocking), NCCL_VERSION(2, 14, 0)};
constexpr Field kMinCtas{"minCTAs", offsetof(ncclConfig_t, minCTAs), NCCL_VERSION(2, 17, 0)};
constexpr Field kMaxCtas{"maxCTAs", offsetof(ncclConfig_t, maxCTAs), NCCL_VERSION(2, 17, 0)};
constexpr Field kNetName{"netName", offsetof(ncclConfig_t, netName), NCCL_VERSION(2, 17, 0)};
constexpr Field kCommName{"commName", offsetof(ncclConfig_t, commName), NCCL_VERSION(2, 27, 0)};
constexpr Field kCtaPolicy{"CTAPolicy", offsetof(ncclConfig_t, CTAPolicy), NCCL_VERSION(2, 27, 0)};
constexpr Field kGraphUsageMode{"graphUsageMode", 80, NCCL_VERSION(2, 29, 0)};
constexpr Field kGraphStreamOrdering{"graphStreamOrdering", 92, NCCL_VERSION(2, 30, 5)};

// Fields after nvlinkCentricSched are newer than NCCL 2.28, so their offsets are literals.
constexpr Hint kHints[] = {
    {{"cgaClusterSize", offsetof(ncclConfig_t, cgaClusterSize), NCCL_VERSION(2, 17, 0)},
     "kernels use no clusters"},
    {{"splitShare", offsetof(ncclConfig_t, splitShare), NCCL_VERSION(2, 18, 0)},
     "each communicator has resources of its own"},
    {{"trafficClass", offsetof(ncclConfig_t, trafficClass), NCCL_VERSION(2, 26, 0)},
     "messages between hosts carry no traffic class"},
    {{"collnetEnable", offsetof(ncclConfig_t, collnetEnable), NCCL_VERSION(2, 27, 0)},
     "switches do not reduce here"},
    {{"shrinkShare", offsetof(ncclConfig_t, shrinkShare), NCCL_VERSION(2, 27, 0)},
     "each communicator has resources of its own"},
    {{"nvlsCTAs", offsetof(ncclConfig_t, nvlsCTAs), NCCL_VERSION(2, 27, 0)},
     "NVLink multicast is not used"},
    {{"nChannelsPerNetPeer", offsetof(ncclConfig_t, nChannelsPerNetPeer), NCCL_VERSION(2, 28, 0)},
     "Oriel itself sets how many queues join two ranks"},
    {{"nvlinkCentricSched", offsetof(ncclConfig_t, nvlinkCentricSched), NCCL_VERSION(2, 28, 0)},
     "there is one schedule"},
    {{"numRmaCtx", 84, NCCL_VERSION(2, 29, 0)}, "one-sided calls have no contexts"},
    {{"maxP2pPeers", 88, NCCL_VERSION(2, 30, 0)}, "all peers can be reached"},
    {{"launchOrderImplicit", 96, NCCL_VERSION(2, 31, 0)}, "launches have one order"},
    {{"numRmaSig", 100, NCCL_VERSION(2, 31, 0)}, "one-sided calls have no signals"},
    {{"rmaEagerInit", 104, NCCL_VERSION(2, 31, 0)}, "one-sided calls have no contexts"},
    {{"hostCftMode", 108, NCCL_VERSION(2, 31, 0)}, "there are no counted windows"},
    {{"nvlsHostMode", 112, NCCL_VERSION(2, 32, 0)}, "NVLink multicast is not used"},
};

/// Reads the fields of a structure of any version. A field is read only if the structure's size and
/// version include it.
class ConfigBytes {
 public:
  explicit ConfigBytes(const ncclConfig_t& given) : given_(&given) {}

  bool initialised() const { return given_->magic == kMagic && given_->size >= kSmallestConfig; }
  std::size_t size() const { return given_->size; }
  unsigned version() const { return given_->version; }
  /// Returns the number; nothing if it is not set.
  std::optional<int> number(const Field& field) const {
    const auto value = read<int>(field).value_or(NCCL_CONFIG_UNDEF_INT);
    return value == NCCL_CONFIG_UNDEF_INT ? std::nullopt : std::optional<int>(value);
  }
  /// Returns the text, or null.
  const char* text(const Field& field) const { return read<const char*>(field).value_or(nullptr); }

 private:
  template <typename T>
  std::optional<T> read(const Field& field) const {
    if (field.offset + sizeof(T) > size() || version() < field.since) return std::nullopt;
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(given_) + field.offset, sizeof value);
    return value;
  }

  const ncclConfig_t* given_;
};

/// Warns once per process if the structure is longer than the longest known. A program has one
/// header, and may start many communicators.
void warn_of_longer_config(const ConfigBytes& config) {
  static std::atomic<bool> is_known{false};
  if (config.size() <= kLargestConfig || is_known.exchange(true)) return;
  Log().alert(
      "ncclConfig_t has {} bytes, of version {}, but this library knows {} bytes, up to NCCL {}: "
      "the fields behind them are ignored; hint: do not set fields that NCCL {} lacks",
      config.size(), config.version(), kLargestConfig, kLargestVersion, kLargestVersion);
}

void note_hints(const ConfigBytes& config, const Log& log) {
  for (const Hint& hint : kHints) {
    if (const auto value = config.number(hint.field)) {
      log.info("ncclConfig_t::{} is {}: ignored, {}", hint.field.name, *value, hint.why_ignored);
    }
  }
  if (const char* const name = config.text(kNetName)) {
    log.info(
        "ncclConfig_t::netName is \"{}\": ignored, ORIEL_WIRE and ORIEL_FABRIC_PROVIDER choose "
        "what "
        "carries messages",
        name);
  }
}

/// Returns a number of CTAs, clamped to its range; 0 if it is not set.
int read_ctas(const ConfigBytes& config, const Field& field, const Log& log) {
  const auto given = config.number(field);
  if (!given) return 0;
  const int used = std::clamp(*given, 1, kMostCtas);
  if (used != *given) {
    log.info("ncclConfig_t::{} is {}: taken as {}, the nearest of 1 to {}", field.name, *given,
             used, kMostCtas);
  }
  return used;
}

/// Returns a mode of 0 to `most`; `fallback` if it is out of range or not set.
int read_mode(const ConfigBytes& config, const Field& field, int most, int fallback,
              const Log& log) {
  const int given = config.number(field).value_or(fallback);
  if (given >= 0 && given <= most) return given;
  log.info("ncclConfig_t::{} is {}: ignored, 0 to {} are known", field.name, given, most);
  return fallback;
}

/// Returns whether copy engines are wanted. NCCL_CTA_POLICY_EFFICIENCY is a hint that changes
/// nothing.
bool read_cta_policy(const ConfigBytes& config, const Log& log) {
  constexpr int kAll = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;
  const int policy = read_mode(config, kCtaPolicy, kAll, NCCL_CTA_POLICY_DEFAULT, log);
  if (policy == NCCL_CTA_POLICY_EFFICIENCY) {
    log.info(
        "ncclConfig_t::CTAPolicy is {}: ignored, the measured table decides the number of CTAs",
        policy);
  }
  return (policy & NCCL_CTA_POLICY_ZERO) != 0;
}

/// Reads the graph modes. graphUsageMode 2 means several graphs, or graphs beside plain calls.
/// Lower modes mean that these do not occur together.
void read_graph_order(const ConfigBytes& config, const Log& log, CommunicatorOptions& options) {
  options.graph_mixing = read_mode(config, kGraphUsageMode, 2, 2, log) == 2;
  options.graph_stream_ordering = read_mode(config, kGraphStreamOrdering, 1, 1, log) == 1;
  if (options.graph_mixing && !options.graph_stream_ordering) {
    log.info(
        "ncclConfig_t::graphStreamOrdering is 0: ignored, unless NCCL_GRAPH_MIXING_SUPPORT is 0, "
        "for graphUsageMode is 2");
  }
}

}  // namespace

Result<CommunicatorOptions> read_config(const ncclConfig_t* given, int rank) {
  CommunicatorOptions options;
  if (given == nullptr) return options;
  const ConfigBytes config(*given);
  if (!config.initialised()) {
    return Error(ErrorCode::invalid_argument, "ncclConfig_t was not initialised")
        .with_hint("begin with NCCL_CONFIG_INITIALIZER");
  }
  const int blocking = config.number(kBlocking).value_or(1);
  if (blocking != 0 && blocking != 1) {
    return Error(ErrorCode::invalid_argument, fmt::format("ncclConfig_t::blocking is {}", blocking))
        .with_hint("0 and 1 are allowed");
  }
  options.blocking = blocking == 1;
  if (const char* const name = config.text(kCommName)) options.name = name;

  const Log log(rank);
  warn_of_longer_config(config);
  note_hints(config, log);
  read_graph_order(config, log, options);
  options.copy_engines = read_cta_policy(config, log);
  options.min_ctas = read_ctas(config, kMinCtas, log);
  options.max_ctas = read_ctas(config, kMaxCtas, log);
  if (options.max_ctas > 0 && options.min_ctas > options.max_ctas) {
    log.info("ncclConfig_t::minCTAs is {}: taken as {}, for maxCTAs is not above that",
             options.min_ctas, options.max_ctas);
    options.min_ctas = options.max_ctas;
  }
  return options;
}

bool asks_for_blocking(const ncclConfig_t* given) {
  if (given == nullptr) return true;
  const ConfigBytes config(*given);
  return !config.initialised() || config.number(kBlocking).value_or(1) != 0;
}

}  // namespace oriel::comm
