// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "topo/model/printable.hpp"
#include "topology/summary.hpp"
#include "topology/svg_layout.hpp"
#include "topology/svg_routes.hpp"

namespace oriel::tools {
namespace {

constexpr std::array<const char*, 6> kTeamColours = {"#2a7f3f", "#8a4fbf", "#b8860b",
                                                     "#1f77b4", "#c0392b", "#117a8b"};
constexpr const char* kLinkColour = "#444444";
constexpr const char* kReachColour = "#7a7a7a";
constexpr const char* kNicColour = "#d9480f";
constexpr const char* kBackupColour = "#e08a3c";
constexpr double kBarHeight = 26;
constexpr double kBarGap = 10;
constexpr double kTitle = 56;
constexpr std::size_t kTitleLetters = 50;
constexpr std::size_t kDeviceLetters = 20;  // letters that fit in a device's box
constexpr double kLetter = 6.3;             // average letter width in a frame's label
constexpr double kTrack = 11;               // distance between tracks
constexpr double kTrackEdge = 12;           // distance from a device to the first track
constexpr double kBelowGpus = 21;           // GPUs to the first wire; clear of boxes without NICs
constexpr const char* kDashes = " stroke-dasharray=\"6 4\"";
constexpr const char* kFineDashes = " stroke-dasharray=\"4 4\"";

/// Bar above a team of GPUs that says how they reach each other.
struct Bar {
  std::vector<int> gpus;
  std::string label;
  std::string shorter;  // used if `label` does not fit
  std::string brief;    // used if `shorter` does not fit
  int row = 0;          // bars side by side share a row
  bool linked = true;   // NVLink or xGMI paths between all pairs
  const char* colour = "";
};

/// Returns the third line of a GPU's box: MIG instance, partition, CUDA device, "not visible" to
/// CUDA, or the name.
std::string device_text(const topo::Machine& machine, const topo::Gpu& gpu) {
  if (gpu.mig_instance >= 0) return fmt::format("MIG instance {}", gpu.mig_instance);
  if (gpu.partition >= 0) return fmt::format("partition {}", gpu.partition);
  if (gpu.ordinal >= 0) return fmt::format("CUDA device {}", gpu.ordinal);
  if (is_hidden(machine, gpu)) return "not visible";
  return topo::fitted(topo::printable(gpu.name), kDeviceLetters);
}

std::string nic_fact_text(const topo::Nic& nic) {
  if (!nic.active) return "not active";
  if (nic.physical) return "of " + nic.physical->to_string();  // a virtual function
  return nic.gbps > 0 ? fmt::format("{:.0f} Gbit/s", nic.gbps) : "speed not known";
}

class Drawing {
 public:
  explicit Drawing(const Summary& summary)
      : summary_(summary),
        machine_(summary.machine),
        links_(links_to_draw(summary)),
        wires_(wires_to_draw(summary)) {
    make_bars();
    bars_top_ = kTitle;
    const double top = bars_top_ + rows_ * (kBarHeight + kBarGap) + 6;
    layout_ = lay_out(summary_, top);
    const int above = find_ways(layout_, links_);
    const int between = find_ways(summary_, layout_, wires_);
    layout_ =
        lay_out(summary_, top, {above * kTrack, kBelowGpus + (between - 1) * kTrack + kTrackEdge});
  }

  std::string draw() {
    const std::size_t entries = legend().size();
    const double height =
        layout_.height + 30 + (entries > 0 ? 20 : 0) + 20.0 * static_cast<double>(entries);
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        layout_.width, height);
    label(24, 34,
          machine_.host.empty() ? "Topology"
                                : topo::fitted(topo::printable(machine_.host), kTitleLetters),
          "#222222", 20, true);
    for (const Box& box : layout_.numa) rectangle(box, "#f3f5f8", "#9aa5b1", 12);
    for (const Box& box : layout_.host_bridges) rectangle(box, "#ffffff", "#c3cad3", 8);
    for (const Box& box : layout_.switches) rectangle(box, "#fdf6e9", "#d9b56c", 8);
    draw_bars();
    for (const Link& link : links_) draw_link(link);
    for (const Wire& wire : wires_) draw_wire(wire);
    for (const Box& box : layout_.numa) frame_label(box, "#f3f5f8");
    for (const Box& box : layout_.host_bridges) frame_label(box, "#ffffff");
    for (const Box& box : layout_.switches) frame_label(box, "#fdf6e9");
    draw_devices();
    draw_legend(layout_.height + 30);
    return text_ + "</svg>\n";
  }

 private:
  bool linked(int from, int to) const {
    return summary_.paths[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)].kind ==
           topo::PathKind::nvlink;
  }
  /// Returns the range of the known bandwidths of all pairs; empty if none is known.
  std::string bandwidth_text(const std::vector<int>& gpus, const char* unit) const {
    double least = 0;
    double most = 0;
    bool all_known = true;
    for (const int a : gpus) {
      for (const int b : gpus) {
        const auto& row = summary_.paths[static_cast<std::size_t>(a)];
        const double gbps = row[static_cast<std::size_t>(b)].gbps;
        if (a != b && gbps <= 0) all_known = false;
        if (a == b || gbps <= 0) continue;
        least = least == 0 ? gbps : std::min(least, gbps);
        most = std::max(most, gbps);
      }
    }
    if (most == 0) return "";
    const bool alike = most - least < 4;  // Gbit/s: less than 0.5 GB/s apart
    const std::string text = alike
                                 ? fmt::format(", {:.0f} {}", least / 8, unit)
                                 : fmt::format(", {:.0f} to {:.0f} {}", least / 8, most / 8, unit);
    return all_known ? text : text + " where known";
  }

  /// Returns "4", or "1 to 4" if the counts differ.
  static std::string count_text(const std::vector<int>& counts) {
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
  }

  /// Facts about the links of a bar's GPUs.
  struct LinkFacts {
    std::vector<int> of_pairs;     // direct links of each pair
    std::vector<int> to_switches;  // each GPU's links to switches
    std::size_t linked_pairs = 0;
    bool direct = false;       // every pair has direct links
    bool switched = false;     // no pair has direct links; every GPU has links to switches
    bool over_others = false;  // no direct links, not all GPUs at switches: paths over other GPUs

    bool all_linked() const { return linked_pairs == of_pairs.size(); }
  };

  LinkFacts link_facts(const std::vector<int>& gpus) const {
    LinkFacts facts;
    for (const int a : gpus) {
      facts.to_switches.push_back(machine_.gpus[static_cast<std::size_t>(a)].switch_links);
      for (const int b : gpus) {
        if (a >= b) continue;
        facts.of_pairs.push_back(direct_links(summary_, a, b));
        if (linked(a, b)) ++facts.linked_pairs;
      }
    }
    facts.direct = facts.linked_pairs > 0 && are_joined_directly(summary_, gpus);
    const auto is_none = [](int links) { return links == 0; };
    const bool apart = std::all_of(facts.of_pairs.begin(), facts.of_pairs.end(), is_none);
    const bool at_switches =
        std::none_of(facts.to_switches.begin(), facts.to_switches.end(), is_none);
    facts.switched = facts.all_linked() && apart && at_switches;
    facts.over_others = facts.all_linked() && apart && !at_switches;
    return facts;
  }

  static std::string bar_text(const LinkFacts& facts) {
    if (facts.linked_pairs == 0) return "loads and stores over PCIe";
    if (facts.direct) {
      return fmt::format("links all to all, {} a pair", count_text(facts.of_pairs));
    }
    if (facts.switched) {
      return fmt::format("NVLink through switches, {} links a GPU", count_text(facts.to_switches));
    }
    if (facts.over_others) return "links over other GPUs";
    return facts.all_linked() ? "links, some over another GPU"
                              : "some pairs linked, others over PCIe";
  }

  /// Returns a short text for narrow bars, such as above two adjacent GPUs.
  std::string brief_text(const LinkFacts& facts, const std::vector<int>& gpus) const {
    if (!facts.all_linked()) return "PCIe";
    const bool amd =
        machine_.gpus[static_cast<std::size_t>(gpus.front())].vendor == topo::GpuVendor::amd;
    const char* const links = amd ? "xGMI links" : "NVLinks";
    if (!facts.direct && !facts.switched) return links;
    const std::string count = count_text(facts.direct ? facts.of_pairs : facts.to_switches);
    if (count == "1") return amd ? "1 xGMI link" : "1 NVLink";
    return fmt::format("{} {}", count, links);
  }

  void make_bars() {
    for (std::size_t team = 0; team < summary_.teams.size(); ++team) {
      const std::vector<int>& gpus = summary_.teams[team];
      if (gpus.size() < 2) continue;
      Bar bar;
      bar.gpus = gpus;
      const LinkFacts facts = link_facts(gpus);
      bar.label =
          fmt::format("team {}: {}{}", team, bar_text(facts), bandwidth_text(gpus, "GB/s one way"));
      bar.linked = facts.all_linked();
      bar.brief = fmt::format("team {}: {}", team, brief_text(facts, gpus));
      bar.shorter = bar.brief + bandwidth_text(gpus, "GB/s");
      bar.colour = kTeamColours[team % kTeamColours.size()];
      // Teams with disjoint ranges of GPUs stand side by side, so their bars share a row.
      for (const Bar& other : bars_) {
        const bool apart = other.gpus.back() < gpus.front() || gpus.back() < other.gpus.front();
        if (!apart) bar.row = std::max(bar.row, other.row + 1);
      }
      rows_ = std::max(rows_, bar.row + 1);
      bars_.push_back(std::move(bar));
    }
  }

  void label(double x, double y, const std::string& words, const char* colour, int size = 12,
             bool bold = false, const char* anchor = "start") {
    text_ += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\" font-size=\"{}\"{} "
        "text-anchor=\"{}\">{}</text>\n",
        x, y, colour, size, bold ? " font-weight=\"bold\"" : "", anchor, topo::xml_escaped(words));
  }

  void rectangle(const Box& box, const char* fill, const char* stroke, double radius,
                 const char* more = "") {
    text_ += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "rx=\"{:.0f}\" fill=\"{}\" stroke=\"{}\"{}/>\n",
        box.x, box.y, box.width, box.height, radius, fill, stroke, more);
  }

  /// Draws a label on a background of its box's colour, because lines to GPUs pass behind it.
  void frame_label(const Box& box, const char* fill) {
    text_ += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"17\" fill=\"{}\"/>\n", box.x + 9,
        box.y + 5, 6 + kLetter * static_cast<double>(box.label.size()), fill);
    text_ += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#5b6672\">{}</text>\n", box.x + 12,
                         box.y + 18, topo::xml_escaped(box.label));
  }

  void line(double x1, double y1, double x2, double y2, const char* colour, double width,
            const char* more = "") {
    text_ += fmt::format(
        "<line x1=\"{:.0f}\" y1=\"{:.0f}\" x2=\"{:.0f}\" y2=\"{:.0f}\" "
        "stroke=\"{}\" stroke-width=\"{}\"{}/>\n",
        x1, y1, x2, y2, colour, width, more);
  }

  void draw_bars() {
    for (const Bar& bar : bars_) {
      const double y = bars_top_ + bar.row * (kBarHeight + kBarGap);
      double left = layout_.width;
      double right = 0;
      for (const int gpu : bar.gpus) {
        const Box& box = layout_.gpus[static_cast<std::size_t>(gpu)];
        left = std::min(left, box.x);
        right = std::max(right, box.right());
      }
      const char* dash = bar.linked ? "" : kDashes;
      for (const int gpu : bar.gpus) {
        const Box& box = layout_.gpus[static_cast<std::size_t>(gpu)];
        line(box.centre(), y + kBarHeight, box.centre(), box.y, bar.colour, bar.linked ? 4 : 2,
             dash);
      }
      rectangle({left, y, right - left, kBarHeight, ""}, bar.linked ? bar.colour : "#ffffff",
                bar.colour, 6, bar.linked ? "" : " stroke-width=\"2\" stroke-dasharray=\"6 4\"");
      const auto fits = [&](const std::string& words) {
        return 7.6 * static_cast<double>(words.size()) < right - left;
      };
      label((left + right) / 2, y + 17,
            fits(bar.label)     ? bar.label
            : fits(bar.shorter) ? bar.shorter
                                : bar.brief,
            bar.linked ? "#ffffff" : bar.colour, 13, true, "middle");
    }
  }

  /// Draws one SVG path; `pieces` are its commands.
  void path(const std::string& pieces, const char* colour, double width, const char* more) {
    text_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n",
                         pieces, colour, width, more);
  }

  /// Returns the width of a line that stands for `links` links.
  static double width_of(int links) { return 0.5 + std::min(links, 5); }

  void draw_link(const Link& link) {
    const Box& from = layout_.gpus[static_cast<std::size_t>(link.from)];
    const Box& to = layout_.gpus[static_cast<std::size_t>(link.to)];
    const double y = from.y - kTrackEdge - link.route.track * kTrack;
    const std::string pieces =
        fmt::format("M {0:.0f} {1:.0f} V {4:.0f} H {2:.0f} V {3:.0f}", link.route.lower[0], from.y,
                    link.route.lower[1], to.y, y);
    if (link.links > 0) {
      path(pieces, kLinkColour, width_of(link.links), "");
    } else {
      path(pieces, kReachColour, 1.5, kFineDashes);
    }
    if (link.one_way) draw_arrow(link.route.lower[1], to.y, link.links > 0);
    if (link.links == 0 || !links_differ()) return;
    text_ += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\" font-size=\"10\" text-anchor=\"middle\" "
        "stroke=\"#ffffff\" stroke-width=\"4\" paint-order=\"stroke\">{}</text>\n",
        (link.route.lower[0] + link.route.lower[1]) / 2, y + 4, kLinkColour, link.links);
  }

  /// Draws an arrow that points down, with its tip at the upper edge of a device.
  void draw_arrow(double x, double y, bool direct) {
    text_ +=
        fmt::format("<polygon points=\"{:.0f},{:.0f} {:.0f},{:.0f} {:.0f},{:.0f}\" fill=\"{}\"/>\n",
                    x, y, x - 4, y - 9, x + 4, y - 9, direct ? kLinkColour : kReachColour);
  }

  /// Returns true if the drawn direct links differ in number.
  bool links_differ() const {
    int seen = 0;
    for (const Link& link : links_) {
      if (link.links > 0 && seen > 0 && link.links != seen) return true;
      if (link.links > 0) seen = link.links;
    }
    return false;
  }

  /// Draws lines from the GPUs down to a horizontal line, and from there to the NIC. Dots mark
  /// joints; lines without a dot only cross.
  void draw_wire(const Wire& wire) {
    const char* const colour = wire.backup ? kBackupColour : kNicColour;
    const Route& route = wire.route;
    const double top = layout_.gpus.front().bottom();
    const double bottom = layout_.nics[static_cast<std::size_t>(wire.nic)].y;
    const double y = top + kBelowGpus + std::max(route.track, 0) * kTrack;
    std::string pieces;
    if (route.track < 0) {
      pieces = fmt::format("M {0:.0f} {1:.0f} V {2:.0f}", route.left(), top, bottom);
    } else {
      for (const double x : route.upper)
        pieces += fmt::format("M {0:.0f} {1:.0f} V {2:.0f} ", x, top, y);
      for (const double x : route.lower) {
        pieces += fmt::format("M {0:.0f} {1:.0f} V {2:.0f} ", x, y, bottom);
      }
      pieces += fmt::format("M {:.0f} {:.0f} H {:.0f}", route.left(), y, route.right());
    }
    path(pieces, colour, wire.backup ? 1.5 : 3,
         wire.backup ? kFineDashes : " stroke-linecap=\"square\"");
    if (route.track < 0) return;
    for (const double x : route.upper) draw_joint(route, x, y, colour, wire.backup);
    for (const double x : route.lower) draw_joint(route, x, y, colour, wire.backup);
  }

  void draw_joint(const Route& route, double x, double y, const char* colour, bool backup) {
    const bool through = std::count(route.upper.begin(), route.upper.end(), x) +
                             std::count(route.lower.begin(), route.lower.end(), x) >
                         1;
    const bool corner = x == route.left() || x == route.right();
    if (corner && !through) return;
    text_ += fmt::format("<circle cx=\"{:.0f}\" cy=\"{:.0f}\" r=\"{}\" fill=\"{}\"/>\n", x, y,
                         backup ? 2.5 : 4.0, colour);
  }

  void draw_devices() {
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
      const topo::Gpu& gpu = machine_.gpus[i];
      const Box& box = layout_.gpus[i];
      rectangle(box, is_hidden(machine_, gpu) ? "#eeeeee" : "#e3f1ff", "#3f6fa3", 6);
      label(box.centre(), box.y + 18, fmt::format("GPU{}", i), "#1d3a57", 14, true, "middle");
      label(box.centre(), box.y + 34, gpu.pci ? gpu.pci->to_string() : "", "#1d3a57", 11, false,
            "middle");
      label(box.centre(), box.y + 48, device_text(machine_, gpu), "#1d3a57", 11, false, "middle");
    }
    for (std::size_t i = 0; i < machine_.nics.size(); ++i) {
      const topo::Nic& nic = machine_.nics[i];
      const Box& box = layout_.nics[i];
      rectangle(box, nic.active ? "#fff0e6" : "#eeeeee", "#b5651d", 6);
      label(box.centre(), box.y + 18, fmt::format("NIC{}", i), "#6b3a0c", 14, true, "middle");
      const std::string name = topo::printable(nic_text(machine_, static_cast<int>(i)));
      label(box.centre(), box.y + 34, topo::fitted(name, kDeviceLetters), "#6b3a0c", 11, false,
            "middle");
      label(box.centre(), box.y + 48, nic_fact_text(nic), "#6b3a0c", 11, false, "middle");
    }
  }

  struct LegendEntry {
    const char* colour;
    double width;
    const char* more;
    const char* words;
    bool arrow = false;
  };

  /// Returns entries for the kinds of lines in the picture.
  std::vector<LegendEntry> legend() const {
    std::vector<LegendEntry> entries;
    const auto any_bar = [&](bool linked) {
      return std::any_of(bars_.begin(), bars_.end(),
                         [&](const Bar& bar) { return bar.linked == linked; });
    };
    const auto any_link = [&](bool direct) {
      return std::any_of(links_.begin(), links_.end(),
                         [&](const Link& link) { return (link.links > 0) == direct; });
    };
    const auto any_choice = [&](int topo::NicChoice::*which) {
      return std::any_of(summary_.nics.begin(), summary_.nics.end(),
                         [&](const topo::NicChoice& choice) { return choice.*which >= 0; });
    };
    if (any_bar(true)) {
      entries.push_back(
          {kTeamColours[0], 4, "", "bar: GPUs that map each other's memory over NVLink or xGMI"});
    }
    if (any_bar(false)) {
      entries.push_back({kTeamColours[0], 2, kDashes,
                         "bar: GPUs that map each other's memory, not all of it over links"});
    }
    if (any_link(true)) {
      entries.push_back({kLinkColour, 2.5, "",
                         links_differ() ? "direct links of two GPUs, with their number"
                                        : "direct links of two GPUs"});
    }
    if (any_link(false)) {
      entries.push_back({kReachColour, 1.5, kFineDashes,
                         "between teams: memory that can be mapped, without a direct link"});
    }
    if (std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.one_way; })) {
      entries.push_back({kReachColour, 1.5, "",
                         "with an arrow: one way only, the GPU that it points to is mapped by the "
                         "other",
                         true});
    }
    if (any_choice(&topo::NicChoice::primary)) {
      entries.push_back({kNicColour, 3, "", "the NIC that a GPU uses"});
    }
    if (any_choice(&topo::NicChoice::backup)) {
      entries.push_back({kBackupColour, 1.5, kFineDashes, "its backup in another fault domain"});
    }
    if (summary_.unknown_pairs > 0) {
      entries.push_back(
          {kReachColour, 0, "",
           "not drawn: what no source says, whether some GPUs map each other's memory"});
    }
    return entries;
  }

  void draw_legend(double y) {
    const std::vector<LegendEntry> entries = legend();
    if (!entries.empty()) label(24, y, "How to read this", "#222222", 13, true);
    for (std::size_t row = 0; row < entries.size(); ++row) {
      const LegendEntry& entry = entries[row];
      const double at = y + 20 + static_cast<double>(row) * 20.0;
      if (entry.arrow) {
        draw_arrow(44, at, false);
      } else if (entry.width > 0) {
        line(24, at - 4, 64, at - 4, entry.colour, entry.width, entry.more);
      }
      label(74, at, entry.words, "#333333");
    }
  }

  const Summary& summary_;
  const topo::Machine& machine_;
  std::vector<Link> links_;
  std::vector<Wire> wires_;
  std::vector<Bar> bars_;
  int rows_ = 0;  // rows of bars
  Layout layout_;
  double bars_top_ = 0;
  std::string text_;
};

}  // namespace

std::string svg_of(const Summary& summary) {
  return Drawing(summary).draw();
}

}  // namespace oriel::tools
