// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel {

enum class BackendChoice : std::uint8_t { automatic, cuda, host };
/// The ways to all-reduce, in the order of kernels::Algorithm; automatic lets the table choose.
enum class AlgorithmChoice : std::uint8_t { automatic, one_shot, two_shot, stream, eager };
/// What joins the NICs of ranks that cannot map each other's memory.
enum class WireChoice : std::uint8_t { automatic, fabric };
/// What executes the queues by which a rank reaches those of other LSA teams.
enum class NicKind : std::uint8_t { soft, mlx5 };
/// Who rings the doorbells of adapters' queues; automatic: their users, where they can.
enum class DoorbellChoice : std::uint8_t { automatic, gpu, cpu };
/// Whether launches of graphs are ordered; automatic leaves it to a communicator's configuration.
enum class GraphMixing : std::uint8_t { automatic, off, on };
/// Whether collectives of GPUs spare multiprocessors; automatic leaves it to a communicator's
/// configuration. Only `zero`, copy engines instead of kernels, has an effect.
enum class CtaPolicy : std::uint8_t { automatic, standard, efficiency, zero };
/// How much the log says; each level includes those before it.
enum class LogLevel : std::uint8_t { none, alert, version, warn, info, trace };

/// How collectives are launched: a part of Settings.
struct LaunchSettings {
  std::int64_t ctas = 0;      ///< 0: the table chooses
  std::int64_t max_ctas = 0;  ///< 0: the library chooses
  GraphMixing graph_mixing = GraphMixing::automatic;
  CtaPolicy cta_policy = CtaPolicy::automatic;
};

/// What a user can set through the environment. The initialisers are the defaults; one table in
/// settings_table.cpp names each member's variable, and yields the parser, docs/settings.md and
/// `oriel-info --env`. To add a setting: a member here, a row there.
///
/// A plain value; copies are independent.
struct Settings : LaunchSettings {
  std::string socket_ifname;  ///< as given; boot splits it
  Duration timeout = std::chrono::seconds(30);
  std::optional<Duration> collective_timeout;  ///< nullopt: collectives wait for ever
  std::string fabric_provider;                 ///< empty: chosen by what the machine has
  NicKind nic = NicKind::soft;
  DoorbellChoice doorbell = DoorbellChoice::automatic;
  WireChoice wire = WireChoice::automatic;
  std::string paths;  ///< as given; comm splits it
  bool nic_process = true;
  std::string nic_program;  ///< empty: looked for beside the library
  std::string host_id;
  std::string topo_file;       ///< empty: this machine is looked at
  std::string topo_dump_file;  ///< empty: nothing is written
  BackendChoice backend = BackendChoice::automatic;
  bool p2p_disable = false;
  bool cpu_affinity = true;
  bool ignore_cpu_affinity = false;
  std::uint64_t big_size_bytes = 0;  ///< 0: chosen from what the machine allows
  bool deterministic = false;
  std::uint64_t scratch_size_bytes = 64ULL << 20;
  AlgorithmChoice algorithm = AlgorithmChoice::automatic;
  std::uint64_t chunk_bytes = 0;  ///< 0: the table chooses
  std::string table_path;         ///< empty: the built-in table
  LogLevel log_level = LogLevel::alert;
  std::string log_file;  ///< empty: standard error
  std::string dump_dir;  ///< empty: nothing is written

  /// Tells the value of an environment variable, or nullopt if it is not set.
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  /// Reads every setting through `lookup`. An empty value counts as not set; an ORIEL_ name wins
  /// over its NCCL_ alias. A value that does not parse is an invalid_usage error that names the
  /// variable, the value and what is allowed. Local; no I/O but for `lookup`.
  static Result<Settings> from_environment(const Lookup& lookup);
};

/// The settings of this process: the environment is read once, at the first call, and a bad value
/// gives the same error at every call. The object lives until the process ends. Any thread.
Result<const Settings*> process_settings();

/// Makes the next process_settings() read the environment again. For tests.
void reread_process_settings();

/// One warning for each name that starts with ORIEL_ and is no setting, with the nearest known name
/// where one is near. ORIEL_TEST_ is left to the tests.
std::vector<std::string> unknown_setting_warnings(std::span<const std::string> names);

/// The names of this process's environment, in its order.
std::vector<std::string> environment_names();

/// A setting in words, for docs/settings.md and `oriel-info --env`.
struct SettingDescription {
  std::string group;  ///< what it is about; settings of one group follow each other
  std::string name;
  std::string alias;  ///< the NCCL name that is also read; may be empty
  std::string kind;
  std::string fallback;  ///< the default, in the syntax that the parser reads
  std::string allowed;
  std::string doc;
  std::string value;  ///< what `settings` holds, in the syntax that the parser reads
};

/// Every setting, in the order of the table.
std::vector<SettingDescription> describe_settings(const Settings& settings);

/// The text of docs/settings.md.
std::string settings_markdown();

}  // namespace oriel
