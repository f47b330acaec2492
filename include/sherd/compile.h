#pragma once
// compile(step): a captured step, which is replayed with the same bits.
#include <sherd/tensor.h>

#include "compile/compile.h"
