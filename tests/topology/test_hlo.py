"""The reader of a compiled program's text, on texts as the compiler writes them."""

import pytest

from nf_resnets.topology import hlo

# A scan of three products over parameters that it takes one by one, and the gradients' mean.
TEXT = """HloModule jit_f, is_scheduled=true

%slices (param_0.1: f32[3,256,256], param_1.1: s32[]) -> f32[256,256] {
  %param_0.1 = f32[3,256,256]{2,1,0:T(8,128)} parameter(0)
  %param_1.1 = s32[]{:T(128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %slice.1 = f32[1,256,256]{2,1,0:T(8,128)} dynamic-slice(%param_0.1, %param_1.1, %zero.1, %zero.1), dynamic_slice_sizes={1,256,256}
  ROOT %bitcast.1 = f32[256,256]{1,0:T(8,128)} bitcast(%slice.1)
}

%body (arg: (s32[], f32[64,256], f32[3,256,256])) -> (s32[], f32[64,256], f32[3,256,256]) {
  %arg = (s32[]{:T(128)}, f32[64,256]{1,0:T(8,128)S(1)}, /*index=2*/f32[3,256,256]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %x = f32[64,256]{1,0:T(8,128)S(1)} get-tuple-element(%arg), index=1
  %w = f32[3,256,256]{2,1,0:T(8,128)} get-tuple-element(%arg), index=2
  %one_w = f32[256,256]{1,0:T(8,128)} fusion(%w, %i), kind=kLoop, calls=%slices
  %dot = f32[64,256]{1,0:T(8,128)S(1)} convolution(%x, %one_w), dim_labels=bf_io->bf
  %all-reduce.1 = f32[64,256]{1,0:T(8,128)S(1)} all-reduce(%dot), replica_groups={{0,1}}, to_apply=%sum
  ROOT %out = (s32[]{:T(128)}, f32[64,256]{1,0:T(8,128)S(1)}, f32[3,256,256]{2,1,0:T(8,128)}) tuple(%i, %all-reduce.1, %w)
}

%condition (arg.1: (s32[], f32[64,256], f32[3,256,256])) -> pred[] {
  %three = s32[]{:T(128)} constant(3)
  %arg.1 = (s32[]{:T(128)}, f32[64,256]{1,0:T(8,128)S(1)}, f32[3,256,256]{2,1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %three), direction=LT
}

ENTRY %main (x.1: f32[64,256], w.1: f32[3,256,256]) -> f32[64,256] {
  %x.1 = f32[64,256]{1,0:T(8,128)S(1)} parameter(0)
  %w.1 = f32[3,256,256]{2,1,0:T(8,128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[64,256]{1,0:T(8,128)S(1)}, f32[3,256,256]{2,1,0:T(8,128)}) tuple(%zero, %x.1, %w.1)
  %while = (s32[]{:T(128)}, f32[64,256]{1,0:T(8,128)S(1)}, f32[3,256,256]{2,1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  %gather = (f32[64,256]{1,0}, f32[128,256]{1,0}) all-gather-start(%x.1), replica_groups={{0,1}}, dimensions={0}
  %gathered = f32[128,256]{1,0} all-gather-done(%gather)
  ROOT %found = f32[64,256]{1,0:T(8,128)S(1)} get-tuple-element(%while), index=1
}
"""  # noqa: E501
ARRAY, WEIGHT = 64 * 256 * 4, 256 * 256 * 4


def test_a_loop_of_constant_length_counts_as_often():
    once, found = hlo.work(TEXT, repeat_loops=False), hlo.work(TEXT)
    assert once["flops"] == 2 * 64 * 256 * 256
    assert found["flops"] == 3 * once["flops"]
    # The scan reads one weight at a time and not all three; x and the product lie beside the core.
    gathered = 128 * 256 * 4
    assert found["main_bytes"] == pytest.approx(3 * 3 * WEIGHT + gathered + ARRAY, rel=1e-3)
    assert found["bytes"] == pytest.approx(
        3 * (3 * WEIGHT + 2 * ARRAY + 2 * ARRAY) + 2 * ARRAY + gathered, rel=0.02
    )


def test_a_loop_of_unknown_length_counts_once():
    unknown = TEXT.replace("constant(3)", "parameter(1)")
    assert hlo.work(unknown) == hlo.work(TEXT, repeat_loops=False)


def test_a_step_is_a_round_of_the_loop_of_unknown_length():
    unknown = TEXT.replace("constant(3)", "parameter(1)")
    step, whole = hlo.step(unknown), hlo.work(unknown)
    # What is beside the loop, here a gather, a call does once.
    assert whole["bytes"] - step["bytes"] == (2 * 64 + 128) * 256 * 4
    assert step["flops"] == whole["flops"] == 2 * 64 * 256 * 256
    assert step["count all-reduce"] == 1 and not step["count all-gather"]
    # Of known length, the loop is part of a larger step.
    assert hlo.step(TEXT) == hlo.work(TEXT)


def test_collectives_are_counted_by_kind_and_bytes():
    found = hlo.work(TEXT)
    assert (found["count all-reduce"], found["bytes all-reduce"]) == (3, 3 * ARRAY)
    assert (found["count all-gather"], found["bytes all-gather"]) == (1, 128 * 256 * 4)
    none = "ENTRY %main () -> f32[] {\n  ROOT %one = f32[] constant(1)\n}\n"
    assert not hlo.work(none)


def test_slices_of_an_array_are_copied_once_and_joined_by_name():
    half = "f32[8,8,128]{2,1,0:T(8,128)S(1)}"
    start = f"((f32[16,8,128]{{2,1,0:T(8,128)}}), {half}, s32[]{{:S(2)}}) slice-start(%x)"
    text = f"""ENTRY %main (x: f32[16,8,128]) -> f32[16,8,128] {{
  %x = f32[16,8,128]{{2,1,0:T(8,128)}} parameter(0)
  %start = {start}, slice={{[0:8], [0:8], [0:128]}}
  %done = {half} slice-done(%start)
  %start.1 = {start}, slice={{[8:16], [0:8], [0:128]}}
  %done.1 = {half} slice-done(%start.1)
  ROOT %y = f32[16,8,128]{{2,1,0:T(8,128)S(1)}} custom-call(%done, %done.1), custom_call_target="ConcatBitcast"
}}
"""  # noqa: E501
    array = 16 * 8 * 128 * 4
    # Read from the main memory, and written beside the core.
    assert hlo.work(text) == {"bytes": 2 * array, "main_bytes": array}


def convolution(layout: str, window: str, x: str, out: str) -> str:
    return f"""ENTRY %main (x: f32[]) -> f32[] {{
  %x = f32[{x}]{layout} parameter(0)
  %w = f32[3,3,16,16]{{3,2,1,0:T(8,128)}} parameter(1)
  ROOT %y = f32[{out}]{layout} convolution(%x, %w), window={{{window}}}, dim_labels=b01f_01io->b01f
}}
"""


@pytest.mark.parametrize(
    ("window", "x", "out", "positions"),
    [
        ("size=3x3", "8,8,8,16", "8,6,6,16", 6 * 3),
        ("size=3x3 pad=1_1x1_1", "8,8,8,16", "8,8,8,16", 8 * 3 - 2),
        ("size=3x3 stride=2x2 pad=0_1x0_1", "8,8,8,16", "8,4,4,16", 4 * 3 - 1),
        # The gradient of a stride of two: every other input is a hole.
        ("size=3x3 pad=2_1x2_1 lhs_dilate=2x2", "8,4,4,16", "8,8,8,16", 11),
    ],
)
def test_a_convolution_counts_what_meets_an_input(window, x, out, positions):
    found = hlo.work(convolution("{3,2,1,0}", window, x, out))
    assert found["flops"] == 2 * 8 * 16 * 16 * positions**2


def test_tiles_are_full():
    plain = hlo.work(convolution("{3,2,1,0}", "size=3x3", "8,8,8,16", "8,6,6,16"))
    tiled = hlo.work(convolution("{3,2,1,0:T(8,128)}", "size=3x3", "8,8,8,16", "8,6,6,16"))
    weight = 9 * 16 * 128 * 4
    assert plain["bytes"] - weight == (8 * 8 * 8 + 8 * 6 * 6) * 16 * 4
    # 16 channels fill 128 places, 6 columns 8 rows.
    assert tiled["bytes"] - weight == (8 * 8 * 8 + 8 * 6 * 8) * 128 * 4
