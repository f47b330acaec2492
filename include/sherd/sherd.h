#pragma once
// What programs on Sherd are written with, in one include:
//
//   #include <sherd/sherd.h>
//   using namespace sherd;
//
// Each header below says what it holds. The library is sherd::sherd (find_package(sherd)). A whole training run as an
// object is <sherd/train.h>, of the library sherd::train. fmt::print comes along.
#include <sherd/checkpoint.h>
#include <sherd/compile.h>
#include <sherd/nn.h>
#include <sherd/parallel.h>
#include <sherd/tensor.h>
