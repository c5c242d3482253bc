// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "topo/printable.hpp"
#include "topology/summary.hpp"
#include "topology/svg_layout.hpp"

namespace oriel::tools {
namespace {

constexpr std::array<const char*, 6> kTeamColours = {"#2a7f3f", "#8a4fbf", "#b8860b",
                                                     "#1f77b4", "#c0392b", "#117a8b"};
constexpr double kBarHeight = 26;
constexpr double kBarGap = 10;
constexpr double kTitle = 56;
constexpr std::size_t kTitleLetters = 50;
constexpr std::size_t kDeviceLetters = 19;  // that fit in a device's box
constexpr double kArcs = 44;                // room for the arcs of direct links

/// How the GPUs of a team reach each other, for the bar above them.
struct Bar {
  std::vector<int> gpus;
  std::string label;
  std::string brief;   // where there is no room for the label
  int row = 0;         // bars beside each other share one
  bool linked = true;  // all by NVLink or xGMI
  const char* colour = "";
};

class Drawing {
 public:
  explicit Drawing(const Summary& summary) : summary_(summary), machine_(summary.machine) {
    make_bars();
    bars_top_ = kTitle;
    const double bars = rows_ * (kBarHeight + kBarGap);
    layout_ = lay_out(summary_, bars_top_ + bars + (has_arcs() ? kArcs : 0) + 6);
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
    draw_arcs();
    draw_choices();
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
  int direct_links(int from, int to) const {
    const topo::GpuPair* pair = topo::find_pair(machine_, from, to);
    return pair == nullptr ? 0 : pair->links;
  }

  /// Of all pairs; empty where nothing tells.
  std::string bandwidth_text(const std::vector<int>& gpus) const {
    double least = 0;
    double most = 0;
    for (const int a : gpus) {
      for (const int b : gpus) {
        const auto& row = summary_.paths[static_cast<std::size_t>(a)];
        const double gbps = row[static_cast<std::size_t>(b)].gbps;
        if (a == b || gbps <= 0) continue;
        least = least == 0 ? gbps : std::min(least, gbps);
        most = std::max(most, gbps);
      }
    }
    if (most == 0) return "";
    const bool alike = most - least < 4;  // they are the same once rounded, or nearly
    return alike ? fmt::format(", {:.0f} GB/s one way", least / 8)
                 : fmt::format(", {:.0f} to {:.0f} GB/s one way", least / 8, most / 8);
  }

  std::string bar_label(std::size_t team, const std::vector<int>& gpus) const {
    int pairs = 0;
    int linked_pairs = 0;
    int direct_pairs = 0;
    for (const int a : gpus) {
      for (const int b : gpus) {
        if (a >= b) continue;
        ++pairs;
        if (linked(a, b)) ++linked_pairs;
        if (direct_links(a, b) > 0) ++direct_pairs;
      }
    }
    std::string text = fmt::format("team {}: ", team);
    if (linked_pairs == 0) {
      text += "loads and stores over PCIe";
    } else if (direct_pairs == pairs) {
      text += fmt::format("links all to all, {} a pair", direct_links(gpus[0], gpus[1]));
    } else if (direct_pairs == 0 && linked_pairs == pairs) {
      text += fmt::format("NVLink through switches, {} links a GPU",
                          machine_.gpus[static_cast<std::size_t>(gpus[0])].switch_links);
    } else if (linked_pairs == pairs) {
      text += "links, some over another GPU";
    } else {
      text += "some pairs linked, others over PCIe";
    }
    return text + bandwidth_text(gpus);
  }

  void make_bars() {
    for (std::size_t team = 0; team < summary_.teams.size(); ++team) {
      const std::vector<int>& gpus = summary_.teams[team];
      if (gpus.size() < 2) continue;
      Bar bar;
      bar.gpus = gpus;
      bar.label = bar_label(team, gpus);
      bar.linked = std::all_of(gpus.begin(), gpus.end(), [&](int a) {
        return std::all_of(gpus.begin(), gpus.end(), [&](int b) { return a == b || linked(a, b); });
      });
      bar.brief = fmt::format("team {}: {}", team, bar.linked ? "links" : "PCIe");
      bar.colour = kTeamColours[team % kTeamColours.size()];
      // Teams that come one after the other among the GPUs do so in the picture.
      for (const Bar& other : bars_) {
        const bool apart = other.gpus.back() < gpus.front() || gpus.back() < other.gpus.front();
        if (!apart) bar.row = std::max(bar.row, other.row + 1);
      }
      rows_ = std::max(rows_, bar.row + 1);
      bars_.push_back(std::move(bar));
    }
  }

  /// Direct links are drawn one by one where they do not join each with each.
  bool has_arcs() const {
    for (const auto& team : summary_.teams) {
      for (const int a : team) {
        for (const int b : team) {
          const topo::Path& path =
              summary_.paths[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
          if (path.kind == topo::PathKind::nvlink && path.hops > 1 &&
              machine_.gpus[static_cast<std::size_t>(a)].switch_links == 0) {
            return true;
          }
        }
      }
    }
    return false;
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

  /// With a halo, for lines to GPUs pass behind it.
  void frame_label(const Box& box, const char* fill) {
    text_ += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#5b6672\" stroke=\"{}\" "
        "stroke-width=\"4\" paint-order=\"stroke\">{}</text>\n",
        box.x + 12, box.y + 18, fill, topo::xml_escaped(box.label));
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
      const char* dash = bar.linked ? "" : " stroke-dasharray=\"6 4\"";
      for (const int gpu : bar.gpus) {
        const Box& box = layout_.gpus[static_cast<std::size_t>(gpu)];
        line(box.centre(), y + kBarHeight, box.centre(), box.y, bar.colour, bar.linked ? 4 : 2,
             dash);
      }
      rectangle({left, y, right - left, kBarHeight, ""}, bar.linked ? bar.colour : "#ffffff",
                bar.colour, 6, bar.linked ? "" : " stroke-width=\"2\" stroke-dasharray=\"6 4\"");
      const bool fits = 8.0 * static_cast<double>(bar.label.size()) < right - left;
      label((left + right) / 2, y + 17, fits ? bar.label : bar.brief,
            bar.linked ? "#ffffff" : bar.colour, 13, true, "middle");
    }
    arcs_bottom_ = layout_.gpus.empty() ? 0 : layout_.gpus.front().y;
  }

  void draw_arcs() {
    if (!has_arcs()) return;
    const auto count = static_cast<int>(machine_.gpus.size());
    for (int a = 0; a < count; ++a) {
      for (int b = a + 1; b < count; ++b) {
        if (direct_links(a, b) == 0) continue;
        const Box& from = layout_.gpus[static_cast<std::size_t>(a)];
        const Box& to = layout_.gpus[static_cast<std::size_t>(b)];
        const double rise = std::min(90.0, 26 + (to.centre() - from.centre()) * 0.06);
        text_ += fmt::format(
            "<path d=\"M {:.0f} {:.0f} Q {:.0f} {:.0f} {:.0f} {:.0f}\" "
            "fill=\"none\" stroke=\"#444444\" stroke-width=\"{}\"/>\n",
            from.centre() + 12, from.y, (from.centre() + to.centre()) / 2, arcs_bottom_ - 2 * rise,
            to.centre() - 12, to.y, 1 + std::min(direct_links(a, b), 4));
      }
    }
  }

  void draw_choices() {
    for (std::size_t gpu = 0; gpu < summary_.nics.size(); ++gpu) {
      const topo::NicChoice& choice = summary_.nics[gpu];
      const Box& from = layout_.gpus[gpu];
      if (choice.backup >= 0) {
        const Box& to = layout_.nics[static_cast<std::size_t>(choice.backup)];
        line(from.centre() + 8, from.bottom(), to.centre() + 8, to.y, "#e08a3c", 1.5,
             " stroke-dasharray=\"4 4\"");
      }
      if (choice.primary >= 0) {
        const Box& to = layout_.nics[static_cast<std::size_t>(choice.primary)];
        line(from.centre(), from.bottom(), to.centre(), to.y, "#d9480f", 3);
      }
    }
  }

  /// What there is to say of a GPU beside its address. CUDA has no part in those of AMD.
  static std::string device_text(const topo::Gpu& gpu) {
    if (gpu.mig_instance >= 0) return fmt::format("MIG instance {}", gpu.mig_instance);
    if (gpu.partition >= 0) return fmt::format("partition {}", gpu.partition);
    if (gpu.ordinal >= 0) return fmt::format("CUDA device {}", gpu.ordinal);
    if (gpu.vendor == topo::GpuVendor::nvidia) return "not visible";
    return topo::fitted(topo::printable(gpu.name), kDeviceLetters);
  }

  static std::string speed_text(const topo::Nic& nic) {
    if (!nic.active) return "not active";
    if (nic.physical) return "of " + nic.physical->to_string();  // of a virtual function
    return nic.gbps > 0 ? fmt::format("{:.0f} Gbit/s", nic.gbps) : "speed not known";
  }

  void draw_devices() {
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
      const topo::Gpu& gpu = machine_.gpus[i];
      const Box& box = layout_.gpus[i];
      const bool hidden = gpu.ordinal < 0 && gpu.vendor == topo::GpuVendor::nvidia;
      rectangle(box, hidden ? "#eeeeee" : "#e3f1ff", "#3f6fa3", 6);
      label(box.centre(), box.y + 18, fmt::format("GPU{}", i), "#1d3a57", 14, true, "middle");
      label(box.centre(), box.y + 34, gpu.pci ? gpu.pci->to_string() : "", "#1d3a57", 11, false,
            "middle");
      label(box.centre(), box.y + 48, device_text(gpu), "#1d3a57", 11, false, "middle");
    }
    for (std::size_t i = 0; i < machine_.nics.size(); ++i) {
      const topo::Nic& nic = machine_.nics[i];
      const Box& box = layout_.nics[i];
      rectangle(box, nic.active ? "#fff0e6" : "#eeeeee", "#b5651d", 6);
      label(box.centre(), box.y + 18, fmt::format("NIC{}", i), "#6b3a0c", 14, true, "middle");
      const std::string name = topo::printable(nic_text(machine_, static_cast<int>(i)));
      label(box.centre(), box.y + 34, topo::fitted(name, kDeviceLetters), "#6b3a0c", 11, false,
            "middle");
      label(box.centre(), box.y + 48, speed_text(nic), "#6b3a0c", 11, false, "middle");
    }
  }

  struct LegendEntry {
    const char* colour;
    double width;
    const char* more;
    const char* words;
  };

  /// Only for what is in the picture.
  std::vector<LegendEntry> legend() const {
    std::vector<LegendEntry> entries;
    const auto any_bar = [&](bool linked) {
      return std::any_of(bars_.begin(), bars_.end(),
                         [&](const Bar& bar) { return bar.linked == linked; });
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
      entries.push_back({kTeamColours[0], 2, " stroke-dasharray=\"6 4\"",
                         "bar: GPUs that map each other's memory, not all of it over links"});
    }
    if (has_arcs()) {
      entries.push_back(
          {"#444444", 2, "", "direct links, where not every GPU has one to every other"});
    }
    if (any_choice(&topo::NicChoice::primary)) {
      entries.push_back({"#d9480f", 3, "", "the NIC that a GPU uses"});
    }
    if (any_choice(&topo::NicChoice::backup)) {
      entries.push_back(
          {"#e08a3c", 1.5, " stroke-dasharray=\"4 4\"", "its backup in another fault domain"});
    }
    return entries;
  }

  void draw_legend(double y) {
    const std::vector<LegendEntry> entries = legend();
    if (!entries.empty()) label(24, y, "How to read this", "#222222", 13, true);
    for (std::size_t row = 0; row < entries.size(); ++row) {
      const LegendEntry& entry = entries[row];
      const double at = y + 20 + static_cast<double>(row) * 20.0;
      line(24, at - 4, 64, at - 4, entry.colour, entry.width, entry.more);
      label(74, at, entry.words, "#333333");
    }
  }

  const Summary& summary_;
  const topo::Machine& machine_;
  std::vector<Bar> bars_;
  int rows_ = 0;  // of bars
  Layout layout_;
  double bars_top_ = 0;
  double arcs_bottom_ = 0;
  std::string text_;
};

}  // namespace

std::string svg_of(const Summary& summary) {
  return Drawing(summary).draw();
}

}  // namespace oriel::tools
