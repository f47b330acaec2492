// The program `sherd`.
#include "tools/cli/commands.h"
#include "tools/cli/program.h"

int main(int argc, char** argv) { return sherd::run_program(argc, argv, sherd::run_command); }
