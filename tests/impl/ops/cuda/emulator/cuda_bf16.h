// Stands in for CUDA's header of this name: a number of 16 bits that the kernels only point at.
#pragma once
#include <stdint.h>
struct __nv_bfloat16 {
    uint16_t bits;
};
