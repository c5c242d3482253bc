// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/abi/nccl_config.hpp"

#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::comm {
namespace {

constexpr unsigned kMagic = 0xcafebeef;
// What the first version with a config had: size, magic, version, blocking.
constexpr std::size_t kSmallestConfig = offsetof(ncclConfig_t, cgaClusterSize);

Error refused(const char* field, const std::string& value, const std::string& hint) {
  return Error(ErrorCode::invalid_argument, fmt::format("ncclConfig_t::{} is {}", field, value))
      .with_hint(hint);
}

// A field for something that this library has no use for may only be unset, or say "none of it".
Status expect(const char* field, int value, int allowed, const char* why) {
  if (value == NCCL_CONFIG_UNDEF_INT || value == allowed) return {};
  return refused(field, std::to_string(value),
                 fmt::format("leave it unset, or set {}: {}", allowed, why));
}

// Where a field is now, older versions had padding behind their last one.
void forget_padding(ncclConfig_t& config) {
  if (config.version < NCCL_VERSION(2, 17, 0)) config.cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  if (config.version < NCCL_VERSION(2, 25, 0)) config.trafficClass = NCCL_CONFIG_UNDEF_INT;
}

Status check_unused_fields(const ncclConfig_t& config) {
  ORIEL_CHECK(expect("cgaClusterSize", config.cgaClusterSize, 0, "kernels use no clusters"));
  ORIEL_CHECK(expect("collnetEnable", config.collnetEnable, 0, "switches do not reduce here"));
  ORIEL_CHECK(expect("nvlsCTAs", config.nvlsCTAs, 0, "NVLink multicast is not used"));
  ORIEL_CHECK(expect("nvlinkCentricSched", config.nvlinkCentricSched, 0, "there is one schedule"));
  ORIEL_CHECK(expect("CTAPolicy", config.CTAPolicy, NCCL_CTA_POLICY_DEFAULT,
                     "the measured table decides the number of CTAs"));
  ORIEL_CHECK(expect("splitShare", config.splitShare, 0, "communicators cannot be split yet"));
  ORIEL_CHECK(expect("shrinkShare", config.shrinkShare, 0, "communicators cannot be shrunk yet"));
  if (config.trafficClass != NCCL_CONFIG_UNDEF_INT) {
    return refused("trafficClass", std::to_string(config.trafficClass),
                   "leave it unset: messages between hosts carry no traffic class");
  }
  if (config.nChannelsPerNetPeer != NCCL_CONFIG_UNDEF_INT) {
    return refused("nChannelsPerNetPeer", std::to_string(config.nChannelsPerNetPeer),
                   "leave it unset: Oriel itself sets how many queues join two ranks");
  }
  if (config.netName != NCCL_CONFIG_UNDEF_PTR) {
    return refused(
        "netName", fmt::format("\"{}\"", config.netName),
        "leave it unset: ORIEL_WIRE and ORIEL_FABRIC_PROVIDER choose what carries messages");
  }
  return {};
}

}  // namespace

Result<CommunicatorOptions> read_config(const ncclConfig_t* given) {
  CommunicatorOptions options;
  if (given == nullptr) return options;
  if (given->magic != kMagic || given->size < kSmallestConfig) {
    return Error(ErrorCode::invalid_argument, "ncclConfig_t was not initialised")
        .with_hint("begin with NCCL_CONFIG_INITIALIZER");
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (given->size > sizeof config) {
    // A newer header: what it adds must be unset, and unset integers are not zero bytes, so the
    // only thing that can be said for certain is that we do not know these fields.
    return Error(ErrorCode::invalid_argument,
                 fmt::format("ncclConfig_t has {} bytes, of version {}, but this library knows {} "
                             "bytes, of version {}",
                             given->size, given->version, sizeof config, NCCL_VERSION_CODE))
        .with_hint("build against the header of this library, or of NCCL up to 2.28");
  }
  std::memcpy(&config, given, given->size);
  forget_padding(config);
  ORIEL_CHECK(check_unused_fields(config));

  const auto in_range = [](int value) { return value >= 1 && value <= 1024; };
  if (config.blocking != NCCL_CONFIG_UNDEF_INT) {
    if (config.blocking != 0 && config.blocking != 1) {
      return refused("blocking", std::to_string(config.blocking), "0 and 1 are allowed");
    }
    options.blocking = config.blocking == 1;
  }
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT) {
    if (!in_range(config.minCTAs)) {
      return refused("minCTAs", std::to_string(config.minCTAs), "1 to 1024 are allowed");
    }
    options.min_ctas = config.minCTAs;
  }
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    if (!in_range(config.maxCTAs)) {
      return refused("maxCTAs", std::to_string(config.maxCTAs), "1 to 1024 are allowed");
    }
    options.max_ctas = config.maxCTAs;
  }
  if (options.max_ctas > 0 && options.min_ctas > options.max_ctas) {
    return refused("minCTAs", std::to_string(options.min_ctas),
                   fmt::format("it may not be above maxCTAs, {}", options.max_ctas));
  }
  if (config.commName != NCCL_CONFIG_UNDEF_PTR) options.name = config.commName;
  return options;
}

bool asks_for_blocking(const ncclConfig_t* given) {
  const bool known = given != nullptr && given->magic == kMagic && given->size >= kSmallestConfig;
  return !known || given->blocking != 0;
}

}  // namespace oriel::comm
