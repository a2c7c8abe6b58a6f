// Handlers for the exercises. Each works on arrays of any shape and treats the last axis as rows.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// C++17 has no bfloat16, so the FFI passes it as uint16_t: the upper half of a float32.
inline float load(float value) { return value; }
inline float load(uint16_t half) {
  uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline void store(float value, float* to) { *to = value; }
inline void store(float value, uint16_t* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  *to = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}

inline ffi::Error wrong(const char* message) { return ffi::Error::InvalidArgument(message); }

// x (..., n) -> y (..., n) of the same dtype and scale (..., groups) in float32.
// The n values of a row are divided into `groups` groups of equal size, each with a scale of its own:
// scale = 1 / sqrt(mean(x * x) + eps), y = x * scale.
template <ffi::DataType T>
ffi::Error GroupNorm(float eps, int64_t groups, ffi::Buffer<T> x, ffi::ResultBuffer<T> y,
                     ffi::ResultBuffer<ffi::F32> scale) {
  if (x.dimensions().size() == 0) return wrong("x has no axis");
  int64_t n = x.dimensions().back();
  if (groups < 1 || n % groups != 0) return wrong("groups does not divide the last axis of x");
  if (y->element_count() != x.element_count()) return wrong("y has another size than x");
  int64_t width = n / groups, count = x.element_count() / width;
  if (int64_t(scale->element_count()) != count) return wrong("scale needs one value for each group of each row");
  for (int64_t group = 0; group < count; ++group) {
    const auto* in = x.typed_data() + group * width;
    auto* out = y->typed_data() + group * width;
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += load(in[i]) * load(in[i]);
    float s = scale->typed_data()[group] = 1 / std::sqrt(sum / width + eps);
    for (int64_t i = 0; i < width; ++i) store(load(in[i]) * s, out + i);
  }
  return ffi::Error::Success();
}

// x (..., n), scale (..., groups), dy (..., n) -> dx (..., n), the gradient with respect to x:
// dx = scale * (dy - x * scale * scale * mean(dy * x)), with the mean of a group.
template <ffi::DataType T>
ffi::Error GroupNormGrad(int64_t groups, ffi::Buffer<T> x, ffi::Buffer<ffi::F32> scale, ffi::Buffer<T> dy,
                         ffi::ResultBuffer<T> dx) {
  if (x.dimensions().size() == 0) return wrong("x has no axis");
  int64_t n = x.dimensions().back();
  if (groups < 1 || n % groups != 0) return wrong("groups does not divide the last axis of x");
  int64_t width = n / groups, count = x.element_count() / width;
  if (int64_t(scale.element_count()) != count) return wrong("scale needs one value for each group of each row");
  if (dy.element_count() != x.element_count()) return wrong("dy has another size than x");
  if (dx->element_count() != x.element_count()) return wrong("dx has another size than x");
  for (int64_t group = 0; group < count; ++group) {
    const auto *in = x.typed_data() + group * width, *back = dy.typed_data() + group * width;
    auto* out = dx->typed_data() + group * width;
    float s = scale.typed_data()[group], dot = 0;
    for (int64_t i = 0; i < width; ++i) dot += load(back[i]) * load(in[i]);
    for (int64_t i = 0; i < width; ++i) store(s * (load(back[i]) - load(in[i]) * s * s * dot / width), out + i);
  }
  return ffi::Error::Success();
}

// x (..., n) -> the sum of the squares of each row (...,), in float32.
ffi::Error RowSquares(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> sums) {
  if (x.dimensions().size() == 0) return wrong("x has no axis");
  int64_t n = x.dimensions().back(), rows = n ? x.element_count() / n : 0;
  if (int64_t(sums->element_count()) != rows) return wrong("sums needs one value for each row");
  for (int64_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x.typed_data()[row * n + i] * x.typed_data()[row * n + i];
    sums->typed_data()[row] = sum;
  }
  return ffi::Error::Success();
}

// Each handler lists its attributes, arguments and results in the order of its function.
#define DEFINE_HANDLERS(dtype, T)                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(group_norm_##dtype, GroupNorm<T>,         \
                                ffi::Ffi::Bind()                          \
                                    .Attr<float>("eps")                   \
                                    .Attr<int64_t>("groups")              \
                                    .Arg<ffi::Buffer<T>>()                \
                                    .Ret<ffi::Buffer<T>>()                \
                                    .Ret<ffi::Buffer<ffi::F32>>());       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(group_norm_grad_##dtype, GroupNormGrad<T>, \
                                ffi::Ffi::Bind()                          \
                                    .Attr<int64_t>("groups")              \
                                    .Arg<ffi::Buffer<T>>()                \
                                    .Arg<ffi::Buffer<ffi::F32>>()         \
                                    .Arg<ffi::Buffer<T>>()                \
                                    .Ret<ffi::Buffer<T>>())

DEFINE_HANDLERS(float32, ffi::F32);
DEFINE_HANDLERS(bfloat16, ffi::BF16);
XLA_FFI_DEFINE_HANDLER_SYMBOL(row_squares, RowSquares,
                              ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
