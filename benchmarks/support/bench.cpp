// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/bench.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/nearest_name.hpp"

namespace oriel::bench {
namespace {

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') made += '\\';
    made += c < ' ' ? ' ' : c;
  }
  return made + "\"";
}

bool read_number(std::string_view text, std::int64_t least, std::int64_t most,
                 std::int64_t& value) {
  std::int64_t read = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), read);
  const std::string_view unit(end, text.data() + text.size());
  constexpr std::string_view kUnits = "KMG";
  const std::size_t which = unit.size() == 1 ? kUnits.find(unit[0]) : std::string_view::npos;
  if (failed != std::errc() || (!unit.empty() && which == std::string_view::npos)) return false;
  const std::int64_t factor = unit.empty() ? 1 : std::int64_t{1024} << (10 * which);
  if (read > most / factor || read * factor < least) return false;
  value = read * factor;
  return true;
}

std::string range_text(std::int64_t least, std::int64_t most) {
  return std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

Fields& Fields::put(const char* name, const std::string& json) {
  if (!text_.empty()) text_ += ", ";
  text_ += quoted(name) + ": " + json;
  return *this;
}

Fields& Fields::add(const char* name, const std::string& text) {
  return put(name, quoted(text));
}

Fields& Fields::add(const char* name, double value) {
  return put(name, number_text(value));
}

Bench::Bench(std::string name, std::string measures)
    : name_(std::move(name)), measures_(std::move(measures)) {
  flag("--out", out_, "write results to this file, not to standard output");
}

Bench::~Bench() {
  if (file_ != stdout) std::fclose(file_);
}

void Bench::flag(const char* name, std::int64_t& value, std::int64_t least, std::int64_t most,
                 const char* help) {
  flags_.push_back(
      {name, "N",
       std::string(help) + " (" + range_text(least, most) + "; " + std::to_string(value) + ")",
       [&value, least, most](const std::string& text) {
         return read_number(text, least, most, value);
       }});
}

void Bench::flag(const char* name, std::string& value, const char* help) {
  const std::string preset = value.empty() ? "" : " (" + value + ")";
  flags_.push_back({name, "TEXT", help + preset,
                    [&value](const std::string& text) { return value = text, true; }});
}

void Bench::flag(const char* name, bool& value, const char* help) {
  flags_.push_back({name, "", help, [&value](const std::string&) { return value = true; }});
}

void Bench::flag(const char* name, std::vector<std::int64_t>& values, std::int64_t least,
                 std::int64_t most, const char* help) {
  std::string preset;
  for (const std::int64_t value : values)
    preset += (preset.empty() ? "" : ",") + std::to_string(value);
  flags_.push_back({name, "N,N...",
                    std::string(help) + " (" + range_text(least, most) + "; " + preset + ")",
                    [&values, least, most](const std::string& text) {
                      values.clear();
                      for (std::size_t at = 0; at <= text.size();) {
                        const std::size_t end = std::min(text.find(',', at), text.size());
                        if (!read_number(std::string_view(text).substr(at, end - at), least, most,
                                         values.emplace_back())) {
                          return false;
                        }
                        at = end + 1;
                      }
                      return true;
                    }});
}

int Bench::refuse(const std::string& what) const {
  std::fprintf(stderr, "%s: %s\n%s --help lists the flags\n", name_.c_str(), what.c_str(),
               name_.c_str());
  return 2;
}

void Bench::print_help() const {
  std::printf("%s: %s\n\nflags:\n", name_.c_str(), measures_.c_str());
  for (const Flag& flag : flags_) {
    const std::string left = flag.name + (flag.value.empty() ? "" : " " + flag.value);
    std::printf("  %-20s %s\n", left.c_str(), flag.help.c_str());
  }
}

bool Bench::knows(const std::string& flag) const {
  return flag == "--help" || flag == "--version" ||
         std::any_of(flags_.begin(), flags_.end(),
                     [&](const Flag& one) { return one.name == flag; });
}

int Bench::refuse_unknown(const std::string& flag) const {
  std::vector<std::string_view> known{"--help", "--version"};
  for (const Flag& one : flags_) known.push_back(one.name);
  return refuse("unknown flag " + flag + suggest_name(flag, known));
}

std::optional<int> Bench::parse(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    if (text == "--help" || text == "-h") return print_help(), 0;
    if (text == "--version") {
      std::printf("%s (Oriel) %s\n", name_.c_str(), ORIEL_VERSION);
      return 0;
    }
    const std::size_t equal = text.find('=');
    const std::string name = text.substr(0, equal);
    const auto flag = std::find_if(flags_.begin(), flags_.end(),
                                   [&](const Flag& one) { return one.name == name; });
    if (flag == flags_.end()) return refuse_unknown(name);
    // No value begins with "--", so such a word is a flag.
    const std::string next = i + 1 < argc ? argv[i + 1] : "--";
    const bool has_next = next.compare(0, 2, "--") != 0;
    if (flag->value.empty()) {
      if (equal != std::string::npos) return refuse(name + " takes no value");
      text.clear();
    } else if (equal != std::string::npos) {
      text = text.substr(equal + 1);
    } else if (has_next) {
      text = next;
      ++i;
    } else if (const std::string other = next.substr(0, next.find('='));
               other != "--" && !knows(other)) {
      return refuse_unknown(other);
    } else {
      return refuse(name + " needs a value");
    }
    if (!flag->set(text)) return refuse(name + " cannot be \"" + text + "\": " + flag->help);
  }
  if (out_.empty()) return std::nullopt;
  file_ = std::fopen(out_.c_str(), "w");
  if (file_ != nullptr) return std::nullopt;
  file_ = stdout;
  return refuse("--out: " + out_ + " cannot be written: " + std::strerror(errno));
}

void Bench::line(const std::string& name, const Fields& parameters, const char* unit,
                 const std::string& rest) {
  std::fprintf(file_, "{\"name\": %s, \"parameters\": {%s}, \"unit\": \"%s\", %s}\n",
               quoted(name).c_str(), parameters.text().c_str(), unit, rest.c_str());
  std::fflush(file_);
}

void Bench::result(const std::string& name, const Fields& parameters, const char* unit,
                   double median, const Fields& details) {
  std::string rest = "\"median\": " + number_text(median);
  if (!details.text().empty()) rest += ", \"details\": {" + details.text() + "}";
  line(name, parameters, unit, rest);
}

void Bench::result(const std::string& name, const Fields& parameters, const char* unit,
                   std::vector<double> samples) {
  std::string list;
  for (const double sample : samples) list += (list.empty() ? "" : ", ") + number_text(sample);
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  line(name, parameters, unit,
       "\"median\": " + number_text(*middle) + ", \"samples\": [" + list + "]");
}

}  // namespace oriel::bench
