#include "tools/train/run_record.h"

#include "runtime/op/attrs/attr_text.h"
#include "runtime/tensor/error.h"

namespace sherd {

using R = RunRecord;
const AttrField RunRecord::fields[14] = {attr<&R::first_step>("first_step"),
                                         attr<&R::run>("run"),
                                         attr<&R::job>("job"),
                                         attr<&R::save_folder>("save_folder"),
                                         attr<&R::skipped_batches>("skipped_batches"),
                                         attr<&R::replaces_saves>("replaces_saves"),
                                         attr<&R::seconds_since_save>("seconds_since_save"),
                                         attr<&R::is_step_open>("is_step_open"),
                                         attr<&R::owes_save>("owes_save"),
                                         attr<&R::last_line>("last_line"),
                                         attr<&R::log>("log"),
                                         attr<&R::replicas>("replicas"),
                                         attr<&R::counts>("counts"),
                                         attr<&R::regroup>("regroup").optional()};

std::string to_text(const RunRecord& record) { return AttrsView(record).print(); }

RunRecord run_record_from_text(const std::string& text) {
  try {
    return AttrsView(parse_attrs(attr_kind<RunRecord>, text)).as<RunRecord>();
  } catch (const Error& error) {
    throw Error(fmt::format("what a rank says of the run cannot be read ({}); do all ranks run the same program?",
                            error.message()));
  }
}

}  // namespace sherd
