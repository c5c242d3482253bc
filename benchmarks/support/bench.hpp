// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace oriel::bench {

/// Members of a JSON object, as text: Fields().add("ranks", 4).add("ring", "host").
class Fields {
 public:
  Fields& add(const char* name, const std::string& text);
  Fields& add(const char* name, const char* text) { return add(name, std::string(text)); }
  Fields& add(const char* name, double value);
  Fields& add(const char* name, bool value) { return put(name, value ? "true" : "false"); }
  template <typename Integer>
  Fields& add(const char* name, Integer value) {
    return put(name, std::to_string(value));
  }
  const std::string& text() const { return text_; }

 private:
  Fields& put(const char* name, const std::string& json);
  std::string text_;
};

/// Command line and results of a benchmark program. Writes one JSON object per line
/// (benchmarks/README.md has the format) to standard output or to the file of --out.
class Bench {
 public:
  /// `measures`: the first text of --help.
  Bench(std::string name, std::string measures);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Registers a flag; its default is the current value of the variable. Numbers may end in K, M or
  /// G (powers of 1024).
  void flag(const char* name, std::int64_t& value, std::int64_t least, std::int64_t most,
            const char* help);
  void flag(const char* name, std::string& value, const char* help);
  void flag(const char* name, bool& value, const char* help);  ///< takes no value
  void flag(const char* name, std::vector<std::int64_t>& values, std::int64_t least,
            std::int64_t most, const char* help);
  /// Returns an exit status if the program must end: 0 after --help or --version, 2 after an error,
  /// which parse() has printed.
  std::optional<int> parse(int argc, const char* const* argv);

  /// Writes one result; `details` are additional fields.
  void result(const std::string& name, const Fields& parameters, const char* unit, double median,
              const Fields& details = {});
  void result(const std::string& name, const Fields& parameters, const char* unit,
              std::vector<double> samples);

 private:
  struct Flag {
    std::string name;
    std::string value;  // placeholder in --help; empty: the flag takes no value
    std::string help;
    std::function<bool(const std::string& text)> set;
  };
  int refuse(const std::string& what) const;
  bool knows(const std::string& flag) const;
  int refuse_unknown(const std::string& flag) const;
  void print_help() const;
  void line(const std::string& name, const Fields& parameters, const char* unit,
            const std::string& rest);

  std::string name_;
  std::string measures_;
  std::vector<Flag> flags_;
  std::string out_;
  std::FILE* file_ = stdout;
};

}  // namespace oriel::bench
