"""What all figures share: headings that wrap."""

from nf_resnets.plotting.style import _text_width, _wrapped


def test_a_heading_fits_its_width_in_lines_about_as_long_as_each_other():
    text = "Fixup, SkipInit and BatchNorm train at 1,000 layers (93.9, 91.9 and 64.7%); LSUV not"
    lines = _wrapped(text, 6.9, 11.0, "bold")
    assert " ".join(lines) == text and len(lines) == 2
    widths = [_text_width(line, 11.0, "bold") for line in lines]
    assert max(widths) <= 6.9 and min(widths) > 0.7 * max(widths)
    assert _wrapped("a" * 200, 2.0, 11.0, "bold") == ["a" * 200]
    assert _wrapped("", 2.0, 8.0, "normal") == [""]
    # A formula is as wide as it is drawn, without its signs.
    assert _text_width("$2^{-6}$", 11.0) < 0.6 * _text_width("2^{-6}", 11.0)
