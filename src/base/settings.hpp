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
/// Algorithms of all-reduce, in the order of kernels::Algorithm; `automatic` lets the table choose.
enum class AlgorithmChoice : std::uint8_t { automatic, one_shot, two_shot, stream, eager };
/// Transport between the NICs of ranks that cannot map each other's memory.
enum class WireChoice : std::uint8_t { automatic, fabric };
/// Executor of the queues through which a rank reaches other LSA teams.
enum class NicKind : std::uint8_t { soft, mlx5 };
/// Party that rings the doorbells of adapter queues; `automatic`: the queues' users if they can.
enum class DoorbellChoice : std::uint8_t { automatic, gpu, cpu };
/// Ordering of graph launches; `automatic` defers to the communicator's configuration.
enum class GraphMixing : std::uint8_t { automatic, off, on };
/// Use of multiprocessors by GPU collectives; `automatic` defers to the communicator's
/// configuration. Only `zero`, copy engines instead of kernels, has an effect.
enum class CtaPolicy : std::uint8_t { automatic, standard, efficiency, zero };
/// Verbosity of the log; each level includes those before it.
enum class LogLevel : std::uint8_t { none, alert, version, warn, info, trace };

/// Launch settings of collectives: a part of Settings.
struct LaunchSettings {
  std::int64_t ctas = 0;      ///< 0: the table chooses
  std::int64_t max_ctas = 0;  ///< 0: the library chooses
  GraphMixing graph_mixing = GraphMixing::automatic;
  CtaPolicy cta_policy = CtaPolicy::automatic;
};

/// Settings that the environment can change. The initialisers are the defaults. One table in
/// settings_table.cpp names the variable of each member; the parser, docs/settings.md and
/// `oriel-info --env` come from it. To add a setting: a member here, a row there.
///
/// A plain value; copies are independent.
struct Settings : LaunchSettings {
  std::string socket_ifname;  ///< raw text; boot parses it
  Duration timeout = std::chrono::seconds(30);
  std::optional<Duration> collective_timeout;  ///< nullopt: collectives wait forever
  std::string fabric_provider;                 ///< empty: chosen from the available providers
  NicKind nic = NicKind::soft;
  DoorbellChoice doorbell = DoorbellChoice::automatic;
  WireChoice wire = WireChoice::automatic;
  std::string paths;  ///< raw text; comm parses it
  bool nic_process = true;
  std::string nic_program;  ///< empty: searched beside the library
  std::string host_id;
  std::string topo_file;       ///< empty: this machine is inspected
  std::string topo_dump_file;  ///< empty: nothing is written
  BackendChoice backend = BackendChoice::automatic;
  bool p2p_disable = false;
  bool cpu_affinity = true;
  bool ignore_cpu_affinity = false;
  std::uint64_t big_size_bytes = 0;  ///< 0: chosen from the machine's limits
  bool deterministic = false;
  std::uint64_t scratch_size_bytes = 64ULL << 20;
  AlgorithmChoice algorithm = AlgorithmChoice::automatic;
  std::uint64_t chunk_bytes = 0;  ///< 0: the table chooses
  std::string table_path;         ///< empty: the built-in table
  LogLevel log_level = LogLevel::alert;
  std::string log_file;  ///< empty: standard error
  std::string dump_dir;  ///< empty: nothing is written

  /// Returns the value of an environment variable; nullopt if it is not set.
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  /// Reads every setting through `lookup`. An empty value counts as not set. An ORIEL_ name takes
  /// precedence over its NCCL_ alias. If a value does not parse, the invalid_usage error names the
  /// variable, the value and the allowed values. Local; no I/O except through `lookup`.
  static Result<Settings> from_environment(const Lookup& lookup);
};

/// Returns the settings of this process. The environment is read once, at the first call; a bad
/// value gives the same error at every call. The object lives until the process ends. Thread-safe.
Result<const Settings*> process_settings();

/// Makes the next process_settings() read the environment again. For tests.
void reread_process_settings();

/// Returns one warning for each name that starts with ORIEL_ and is no setting, with a similar
/// known name if there is one. ORIEL_TEST_ names are reserved for tests.
std::vector<std::string> unknown_setting_warnings(std::span<const std::string> names);

/// Returns the names of this process's environment, in its order.
std::vector<std::string> environment_names();

/// Description of a setting, for docs/settings.md and `oriel-info --env`.
struct SettingDescription {
  std::string group;  ///< topic; settings of one group are adjacent
  std::string name;
  std::string alias;  ///< NCCL name that is also read; may be empty
  std::string kind;
  std::string fallback;  ///< default, in the syntax of the parser
  std::string allowed;
  std::string doc;
  std::string value;  ///< present value, in the syntax of the parser
};

/// Describes every setting, in the order of the table.
std::vector<SettingDescription> describe_settings(const Settings& settings);

/// Returns the text of docs/settings.md.
std::string settings_markdown();

}  // namespace oriel
