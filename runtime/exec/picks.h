#pragma once
// Choices that are made by timing, as which algorithm makes a product. They decide bits, so they are the job's: the
// rank that first comes to one times the candidates, the others take what it has found, saves keep them, and a resumed
// run begins with them.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

class Picks {
 public:
  using Make = std::function<std::string()>;
  /// How the ranks of a job share a pick: what another rank has made for the key, or what make() returns, which the
  /// others are given then.
  using Share = std::function<std::string(const std::string& key, const Make& make)>;

  /// Nothing is timed, and what is fast but adds in no fixed order is left alone: the same program on the same kind of
  /// machine gives the same bits, whoever starts it. SHERD_REPRODUCIBLE=1 sets it at first. To be set before a device
  /// is opened.
  bool is_reproducible;

  Picks();
  void share_by(Share share) { share_ = std::move(share); }
  /// This rank's, if it has one.
  std::optional<std::string> find(const std::string& key) const;
  /// This rank's, else the job's, else what make() returns. May wait for another rank that makes it, at most half a
  /// minute.
  std::string find_or_make(const std::string& key, const Make& make);

  /// A line "key = pick" for each, in the order of keys.
  std::string text() const;
  /// Takes those of text() that this rank has not got.
  void load(std::string_view text);

 private:
  Share share_;
  std::map<std::string, std::string> picks_;
};

/// SHERD_REPRODUCIBLE=1.
bool is_requested_reproducible();

/// This rank's.
Picks& picks_of_rank();

}  // namespace sherd
