#pragma once
// Prices by name: the files of devices/ and fabrics/, which are in the program, and files of the same form.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/calibration.h"
#include "runtime/exec/price.h"

namespace sherd::plan {

/// A file that the program has in itself.
struct PresetFile {
  std::string_view folder, name, text;
};
/// By folder and name.
std::span<const PresetFile> preset_files();

/// The names of a folder: "devices", "fabrics".
std::vector<std::string> preset_names(std::string_view folder);

/// Whether the program has a device of that name: all of them are GPUs.
bool is_preset_device(std::string_view name);
/// A preset's name, or the path of a file, which has a "/" or ends in ".json". ExitError of usage that names `flag`,
/// and the nearest name or what is wrong with the file.
DeviceModel find_device(const std::string& name_or_path, std::string_view flag);
/// The same, where a file may also be a calibration (`sherd calibrate --out FILE`), with the calls that it has
/// measured. Of a model `build` is empty, and there are no calls.
Calibration find_priced_device(const std::string& name_or_path, std::string_view flag);
FabricModel find_fabric(const std::string& name_or_path, std::string_view flag);

}  // namespace sherd::plan
