// What the run has measured beside its settings: ranks that come late, CPUs that were taken away, pages, the loop.
#include <algorithm>
#include <cmath>
#include <map>

#include "tools/diagnose/findings.h"

namespace sherd::diagnose {

namespace {

constexpr double kMinorFault = 0.5e-6, kMajorFault = 100e-6;   // seconds: the kernel clears a page; a disk reads one
constexpr double kEagerCall = 1.5e-6, kReplayedCall = 0.5e-6;  // of the host, beside a call's work
constexpr double kRecordedCall = 30e-6;                        // with the passes over the recording
constexpr double kSharedMemory = 4e9;                          // bytes/s between ranks of a host
constexpr double kManyTimes = 4;                               // a link that is so much slower than shared memory
constexpr double kManyEvaluations = 0.25;                      // share of a run that nobody wants to evaluate for

std::string ms(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

double sum(const std::vector<RankHost>& hosts, double RankHost::* count) {
  double total = 0;
  for (const RankHost& host : hosts) total += host.*count;
  return total;
}

double most(const std::vector<RankHost>& hosts, double RankHost::* count) {
  double largest = 0;
  for (const RankHost& host : hosts) largest = std::max(largest, host.*count);
  return largest;
}

const std::vector<RankHost>& hosts_of(const RunCase& facts) {
  static const std::vector<RankHost> kNone;
  const auto& times = facts.last().metrics.times;
  return times ? times->hosts : kNone;
}

/// Seconds of a step in which rank 0's thread computes, and so wants a CPU.
double busy_seconds(const RunCase& facts) { return facts.shares.at(Share::compute); }

// The rank that all collectives wait for. If that is rank 0, its lines show no waits, and its lateness has to do: it
// counts too much, as what is late for one collective may be for the next.
void find_slow_rank(const RunCase& facts, std::vector<Finding>& findings) {
  const auto& times = facts.last().metrics.times;
  if (!times || times->stragglers.empty() || times->steps.count == 0) return;
  const RankLateness& late = times->ranks[static_cast<std::size_t>(times->stragglers.front())];
  const double calls = static_cast<double>(late.calls) / static_cast<double>(times->steps.count);
  const double skew = facts.shares.at(Share::skew);
  const double lost = late.rank == 0 ? std::min(calls * late.median_seconds, 0.9 * facts.step()) : skew;
  if (lost < kWeight * facts.step()) return;
  Finding finding{
      .id = "slow_rank",
      .seconds = lost,
      .evidence = {{fmt::format("rank {} on {} comes {} after the first rank in the median of {} "
                                "collectives, {:.1f} of a step",
                                late.rank, late.host, ms(late.median_seconds), late.calls, calls),
                    facts.last().line},
                   {fmt::format("rank 0 waits {} for ranks that come later", ms(facts.shares.at(Share::skew))), 0}},
      .command = fmt::format("look at rank {} on {}: what else runs there, its clock, its memory; or leave "
                             "its host out",
                             late.rank, late.host),
      .gain = lost};
  if (const auto& hosts = hosts_of(facts); std::cmp_less(late.rank, hosts.size())) {
    const RankHost& own = hosts[static_cast<std::size_t>(late.rank)];
    finding.evidence.push_back(
        {fmt::format("it had {} of CPUs in a step and lost them {:.1f} times", ms(own.cpu), own.involuntary_switches),
         facts.last().line});
  }
  findings.push_back(std::move(finding));
}

// CPUs that were there and that the run did not get: by a quota, by a mask, or as others ran on them. Ranks that share
// CPUs among themselves have all of them, and lose none.
void find_few_cpus(const RunCase& facts, std::vector<Finding>& findings) {
  const std::vector<RankHost>& hosts = hosts_of(facts);
  if (hosts.empty()) return;
  const int line = facts.last().line;
  const double step = facts.step(), cpus = most(hosts, &RankHost::cpus), online = most(hosts, &RankHost::online);
  const double wanted = std::min(online, std::max(sum(hosts, &RankHost::threads), static_cast<double>(hosts.size())));
  Finding finding{.id = "few_cpus"};
  if (const double throttled = most(hosts, &RankHost::throttled); throttled > kWeight * step) {
    finding.seconds = std::min(throttled / std::max(1.0, std::min(cpus, wanted)), 0.9 * step);
    finding.evidence.push_back({fmt::format("the control group stood still for {} of a step, on all its CPUs, as its "
                                            "quota was spent",
                                            ms(throttled)),
                                line});
    finding.command = "raise the quota of the control group (cpu.max), or give the run fewer threads";
  } else if (cpus < wanted && sum(hosts, &RankHost::cpu) > 0.7 * cpus * busy_seconds(facts)) {
    finding.seconds = facts.shares.at(Share::compute) * (1 - cpus / wanted);
    finding.evidence.push_back(
        {fmt::format("{} ranks may use {:.0f} of the {:.0f} CPUs of their host", hosts.size(), cpus, online), line});
    finding.command = "start the run on more CPUs (taskset, --cpus-per-task, cpuset)";
  } else {
    // Not more than what rank 0 itself has missed: a thread that computes is on a CPU.
    const double missed = std::max(0.0, busy_seconds(facts) - hosts[0].cpu);
    const double ranks_miss = std::max(0.0, busy_seconds(facts) * std::min(wanted, cpus) - sum(hosts, &RankHost::cpu));
    const bool is_one_late = !facts.last().metrics.times->stragglers.empty();
    finding.seconds = std::max(missed, is_one_late ? 0 : facts.shares.at(Share::skew));
    const bool share_cpus = sum(hosts, &RankHost::threads) > cpus;  // then they take them from one another
    const bool is_uneven = !is_one_late && !share_cpus && facts.shares.at(Share::skew) > kWeight * step;
    const bool is_taken =
        most(hosts, &RankHost::involuntary_switches) >= 1 && (is_uneven || ranks_miss > 2 * kWeight * step);
    if (!is_taken) return;
    finding.evidence.push_back(
        {fmt::format("ranks had {} of CPUs in a step of {} busy on {:.0f} CPUs, and lost them {:.1f} times",
                     ms(sum(hosts, &RankHost::cpu)), ms(busy_seconds(facts)), std::min(wanted, cpus),
                     most(hosts, &RankHost::involuntary_switches)),
         line});
    finding.command = "stop what else runs on this host, or give the run fewer --threads";
  }
  const auto& times = facts.last().metrics.times;
  if (times->stragglers.empty() && facts.shares.at(Share::skew) > kWeight * step)
    finding.evidence.push_back({fmt::format("rank 0 waits {} for ranks that come later, and no rank is always the last",
                                            ms(facts.shares.at(Share::skew))),
                                0});
  finding.gain = finding.seconds;
  if (finding.seconds >= kWeight * step) findings.push_back(std::move(finding));
}

void find_page_faults(const RunCase& facts, std::vector<Finding>& findings) {
  const std::vector<RankHost>& hosts = hosts_of(facts);
  const double minor = most(hosts, &RankHost::minor_faults), major = most(hosts, &RankHost::major_faults);
  const double lost = kMinorFault * minor + kMajorFault * major;
  if (lost < kWeight * facts.step()) return;
  findings.push_back({.id = "page_faults",
                      .seconds = lost,
                      .evidence = {{fmt::format("{:.0f} minor and {:.0f} major page faults of a rank in a step, {:.0f} "
                                                "pages from swap; a settled step has none",
                                                minor, major, most(hosts, &RankHost::swap_in)),
                                    facts.last().line}},
                      .command = "give the run more memory, or hold less: --recompute selective, a smaller batch",
                      .gain = lost});
}

void find_data_stall(const RunCase& facts, std::vector<Finding>& findings) {
  const double lost = facts.shares.at(Share::data);
  if (lost < kWeight * facts.step()) return;
  findings.push_back(
      {.id = "data_stall",
       .seconds = lost,
       .evidence = {{fmt::format("the batch of a step takes {}, {} of it", ms(lost), percent(lost / facts.step())), 0}},
       .command = "put the text on a faster disk, or make batches beside the steps",
       .gain = lost});
}

void find_evaluations_and_saves(const RunCase& facts, std::vector<Finding>& findings) {
  const double evaluations = facts.shares.at(Share::evaluation), saves = facts.shares.at(Share::saves);
  const TrainConfig& c = facts.run.config;
  const bool many = evaluations > kManyEvaluations * facts.step(), slow = saves > kWeight * facts.step();
  if (!many && !slow) return;
  Finding finding{.id = "eval_or_saves", .seconds = (many ? evaluations : 0) + (slow ? saves : 0)};
  finding.evidence.push_back(
      {fmt::format("evaluations take {} of each step, saves {}", ms(evaluations), ms(saves)), 0});
  std::vector<std::string> flags;
  if (slow && !c.save_async) {
    flags.push_back("--save-async");
    finding.gain += saves;
  } else if (slow && c.save_every > 0) {
    flags.push_back(fmt::format("--save-every {}", 4 * c.save_every));
    finding.gain += 0.75 * saves;
  }
  if (many && c.eval_every > 0) {
    flags.push_back(fmt::format("--eval-every {}", 4 * c.eval_every));
    finding.gain += 0.75 * evaluations;
  }
  finding.command = fmt::format("{}", fmt::join(flags, " "));
  findings.push_back(std::move(finding));
}

// Steps that are captured and are not replayed, beside those that are.
void find_eager_fallback(const RunCase& facts, std::vector<Finding>& findings) {
  if (!facts.run.config.plan.compiled) return;
  double eager = 0, replayed = 0, num_eager = 0, num_replayed = 0;
  std::map<std::string, std::pair<int, int>> reasons;  // how many, and a line
  for (const StepLine& line : facts.run.settled) {
    const auto& captured = line.metrics.captured;
    const bool is_replay = captured && captured->is_replay;
    (is_replay ? replayed : eager) += line.metrics.step_seconds;
    (is_replay ? num_replayed : num_eager) += 1;
    if (captured && !is_replay) reasons[captured->why] = {reasons[captured->why].first + 1, line.line};
  }
  if (num_eager == 0 || reasons.empty()) return;
  const double steps = num_eager + num_replayed;
  const bool can_compare = num_replayed > 0;
  const double each = can_compare ? eager / num_eager - replayed / num_replayed
                                  : static_cast<double>(facts.priced.calls()) * (kRecordedCall - kReplayedCall);
  const double lost = std::max(0.0, each) * num_eager / steps;
  if (lost < kWeight * facts.step() && num_eager < 0.5 * steps) return;
  const auto& [why, times] = *std::ranges::max_element(reasons, {}, [](const auto& r) { return r.second.first; });
  findings.push_back({.id = "eager_fallback",
                      .seconds = lost,
                      .evidence = {{fmt::format("{:.0f} of {:.0f} steps are not replayed; {} of them: {}", num_eager,
                                                steps, times.first, why),
                                    times.second},
                                   {can_compare ? fmt::format("they take {}, replayed ones {}", ms(eager / num_eager),
                                                              ms(replayed / num_replayed))
                                                : "none is replayed",
                                    0}},
                      .command = "give the step one shape and one set of settings (docs/compile.md)",
                      .gain = lost,
                      .is_simulated = !can_compare});
}

// Calls that take no longer than to make them.
void find_host_bound(const RunCase& facts, std::vector<Finding>& findings) {
  const auto calls = static_cast<double>(facts.priced.calls());
  if (facts.run.config.plan.compiled || calls == 0) return;
  const double lost = calls * (kEagerCall - kReplayedCall), each = facts.shares.at(Share::compute) / calls;
  if (lost < kWeight * facts.step()) return;
  findings.push_back(
      {.id = "host_bound",
       .seconds = lost,
       .evidence = {{fmt::format("{:.0f} calls of rows in a step take {:.1f} us each", calls, 1e6 * each), 0},
                    {"compile = false", 1}},
       .command = "--compile",
       .gain = lost,
       .is_simulated = true});
}

// What of the transfers a usual link would take away, beyond what settings do.
void find_slow_link(const RunCase& facts, std::vector<Finding>& findings) {
  if (facts.priced.times_slower() < kManyTimes || facts.shares.transfers() < kWeight * facts.step()) return;
  const auto lacks_cpus = [&](const Finding& f) { return f.id == "few_cpus" && f.seconds > facts.shares.transfers(); };
  if (std::ranges::any_of(findings, lacks_cpus)) return;  // without them transfers take long as well
  double by_settings = 0;
  for (const Finding& finding : findings)
    if (finding.is_simulated && finding.id != "small_batch" && finding.id != "needless_recompute" &&
        finding.id != "host_bound" && finding.id != "eager_fallback")
      by_settings = std::max(by_settings, finding.gain);
  const double lost = std::min(facts.priced.gain_on_link(kSharedMemory), facts.shares.transfers()) - by_settings;
  if (lost < kWeight * facts.step()) return;
  const plan::Changes knobs[] = {{{"reshard_after_forward", "false"}},
                                 {{"gather", "int8"}},
                                 {{"gather", "int8"}, {"reduce", "int8"}},
                                 {{"strategy", "shard_grad_op"}}};
  std::string command = "a faster link between these ranks, or more tokens for each transfer: --batch, --accumulate";
  double best = 0;
  for (const plan::Changes& knob : knobs)
    if (const std::optional<double> gain = facts.priced.gain(knob); gain && *gain > best)
      best = *gain, command = plan::as_flags(knob);
  findings.push_back(
      {.id = "slow_link",
       .seconds = lost,
       .evidence = {{fmt::format("gathers move {:.3g} GB/s of what a rank sends, and take {:.0f} times as long as in "
                                 "memory that ranks share",
                                 1e-9 * facts.priced.bytes_per_second(), facts.priced.times_slower()),
                     facts.last().line},
                    {fmt::format("exposed transfers take {}", ms(facts.shares.transfers())), 0}},
       .command = command,
       .gain = best > 0 ? std::min(best, facts.shares.transfers()) : lost,
       .is_simulated = true});
}

}  // namespace

void find_on_host(const RunCase& facts, std::vector<Finding>& findings) {
  find_slow_rank(facts, findings);
  find_few_cpus(facts, findings);
  find_page_faults(facts, findings);
  find_data_stall(facts, findings);
  find_evaluations_and_saves(facts, findings);
  find_eager_fallback(facts, findings);
  find_host_bound(facts, findings);
  find_slow_link(facts, findings);
}

std::vector<Finding> findings_of(const RunCase& facts) {
  std::vector<Finding> findings;
  find_in_settings(facts, findings);
  find_on_host(facts, findings);
  std::ranges::stable_sort(findings, std::greater<>(), &Finding::seconds);
  return findings;
}

std::string bound_of(const RunCase& facts) {
  std::size_t largest = 0;
  for (std::size_t s = 0; s < kNumShares; ++s)
    if (facts.shares.seconds[s] > facts.shares.seconds[largest]) largest = s;
  const auto share = static_cast<Share>(largest);
  std::string text = fmt::format("{} bounds it: {} of a step, {}", name(share), ms(facts.shares.at(share)),
                                 percent(facts.shares.at(share) / std::max(facts.step(), 1e-12)));
  if (share != Share::compute) return text;
  const auto calls = static_cast<double>(facts.priced.calls());
  if (calls > 0) text += fmt::format(", in {:.0f} calls of {:.1f} us", calls, 1e6 * facts.shares.at(share) / calls);
  double mfu = 0;
  for (const StepLine& line : facts.run.settled) mfu += line.metrics.mfu.value_or(0);
  mfu /= static_cast<double>(facts.run.settled.size());
  if (mfu > 0)
    text += fmt::format("; MFU {:.1f} %, so a step at the peak of the CPUs would take {}", 100 * mfu,
                        ms(mfu * facts.run.step_seconds()));
  return text;
}

}  // namespace sherd::diagnose
