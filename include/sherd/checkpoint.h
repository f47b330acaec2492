#pragma once
// Saves of a model and its optimizer, full state dicts, Hugging Face directories.
#include <sherd/nn.h>

#include "nn/checkpoint/full/full_state.h"
#include "nn/checkpoint/model_saves.h"
#include "nn/checkpoint/save/async_saver.h"
#include "nn/checkpoint/training_state.h"
#include "nn/interop/huggingface.h"
