#pragma once
// A whole training run as an object, of the library sherd::train: what `sherd train` does, a language model in training
// for loops of one's own, and the memory that either will take.
#include <sherd/sherd.h>

#include "tools/train/predicted_peak.h"
#include "tools/train/train_step.h"
#include "tools/train/trainer.h"
