"""The commands as a user meets them: what they write and say, and what they refuse."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import nf_resnets
from nf_resnets import models, trained
from nf_resnets.cli import networks as command
from nf_resnets.command_line import finish
from nf_resnets.trained.fit import SETTINGS
from nf_resnets.trained.fit_translation import TranslationRecipe
from nf_resnets.translation import train_vocabulary, translate
from tests.trained.conftest import wanted
from tests.trained.networks import drawn
from tests.trained.test_from_torch import checkpoint


def said(capsys):
    found = capsys.readouterr()
    return found.out, found.err


def fails(wanted, capsys):
    """The one sentence on stderr with which a command ends with code 2."""
    capsys.readouterr()
    assert finish(wanted) == 2
    out, err = said(capsys)
    assert err.count("\n") == 1 and "Traceback" not in err, err
    return err


def test_a_trained_network_names_digits(home, capsys):
    """As the library's function does it; the files are named after their digits."""
    files, network = sorted((home / "digits").glob("*.png")), home / "digits.safetensors"
    assert [file.stem.split("_")[1] for file in files] == list("0123456789")
    assert finish(command.Predict(network, tuple(files), top=2)) == 0
    lines = [line.split() for line in said(capsys)[0].splitlines()]
    for line, (name, chance) in zip(lines, nf_resnets.predict(network, files), strict=True):
        assert line[1] == name and len(line) == 5
        # To a tenth of a percent.
        assert float(line[2][:-1]) / 100 == pytest.approx(chance, abs=6e-4)
    assert trained.load(network).notes["test_accuracy"] > 0.7
    assert sum(line[1] == file.stem[-1] for line, file in zip(lines, files, strict=True)) > 4


def test_fine_tuning_begins_with_the_network_and_a_new_head(home, tmp_path, capsys):
    how = dataclasses.replace(SETTINGS, epochs=2.0, peak_lr=0.1)
    wanted = command.Tune(
        home / "digits.safetensors", tmp_path / "tuned.safetensors", learn="head", settings=how
    )
    assert finish(wanted) == 0
    assert "2 of " in said(capsys)[0]
    old, new = (trained.load(path) for path in (wanted.file, wanted.out))
    stem = [each.variables["params"]["stem"]["kernel"] for each in (old, new)]
    assert np.array_equal(*stem)
    assert new.notes["tuned_from"]["steps"] == old.notes["steps"]
    # A new head on features of the same digits.
    assert new.notes["learn"] == "head" and new.notes["test_accuracy"] > 0.6
    assert "is there already" in fails(wanted, capsys)


def test_export(home, capsys):
    wanted = command.Export(home / "digits.safetensors", home / "net.stablehlo")
    assert finish(wanted) == 0
    assert "from pixels float32 [b, 8, 8, 1], 0 to 16" in said(capsys)[0]
    assert "is there already" in fails(wanted, capsys)


def test_mistakes_end_with_a_sentence(home, tmp_path, capsys):
    net = home / "digits.safetensors"
    text = tmp_path / "text.png"
    text.write_text("no image\n")
    good = next((home / "digits").glob("*.png"))
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(net.read_bytes()[:-10])

    def tuned(**changes):
        how = dataclasses.replace(SETTINGS, **changes)
        return command.Tune(net, tmp_path / "x", settings=how)

    for each, message in (
        (command.Predict(net, (tmp_path / "gone.png",)), "gone.png: No such file or directory."),
        (command.Predict(net), "holds a network for images; expected image files"),
        (command.Predict(net, (good,), top=0), "--top 0 found; expected 1 or more"),
        (command.Predict(net, sentence=("hello",)), "holds a network for images; expected image"),
        (command.Predict(cut, (good,)), "cut.safetensors cannot be read"),
        (command.Show(text), "text.png cannot be read"),
        (command.Export(net, tmp_path / "x", platforms=("gpu",)), "('gpu',)"),
        (tuned(model="wrn-10-1"), "--model wrn-10-1 found"),
        (wanted(tmp_path / "x", model="vgg-16", scheme="plain"), "32 or more"),
        (wanted(tmp_path / "x", steps=3), "epochs=4 and steps=3 found"),
        (command.Train(tmp_path), "is a folder"),
    ):
        assert message in fails(each, capsys), each
    assert not (tmp_path / "x").exists()
    # A picture is named beside one that cannot be read.
    assert finish(command.Predict(net, (text, good))) == 2
    out, err = said(capsys)
    assert out.startswith(str(good)) and out.count("\n") == 1 and "text.png cannot be read" in err


def test_sentences_are_translated(tmp_path, capsys):
    """As the library's function does it: the words of an untrained network mean nothing."""
    pytest.importorskip("sentencepiece")
    words = train_vocabulary(["ein haus am see"] * 3, ["a house by the lake"] * 3, size=24)
    model = models.Transformer(vocab_size=words.target_size, num_layers=1, d_model=8,
                               num_heads=2, d_ff=8, max_length=32)  # fmt: skip
    inputs = trained.Sentences("de", "en", words.source, words.target)
    path = trained.save(tmp_path / "net.safetensors", model, drawn(model), inputs=inputs)
    sentences = ("ein haus", "am see")
    assert finish(command.Predict(path, sentence=sentences, beam=2)) == 0
    out = said(capsys)[0]
    params = trained.load(path).variables["params"]
    expected = translate(model, params, words, sentences, beam=2)
    assert out.splitlines() == [sentence or "" for sentence in expected]
    long = fails(command.Predict(path, sentence=("haus " * 10_000,)), capsys)
    assert "tokens; expected at most max_length=32" in long
    assert "expected --sentence" in fails(command.Predict(path, (Path("a.png"),)), capsys)
    assert "which takes sentences" in fails(command.Export(path, tmp_path / "x"), capsys)


def test_a_published_checkpoint_is_kept(tmp_path, capsys):
    _, _, state_dict = checkpoint("torchvision-resnet")
    save_file(state_dict, tmp_path / "theirs.safetensors")
    names = ("Katze", "Hund", "Maus", "Uhu", "Reh", "Wal", "Floh")
    (tmp_path / "classes.txt").write_text("\n".join(names), "utf-8-sig")
    wanted = command.FromTorch(
        tmp_path / "theirs.safetensors", tmp_path / "net", "resnet-34", "batchnorm",
        class_names=tmp_path / "classes.txt", stem_channels=4,
    )  # fmt: skip
    assert finish(wanted) == 0
    assert "laid out as torchvision-resnet" in said(capsys)[0]
    found = trained.load(tmp_path / "net")
    assert found.inputs.class_names == names
    assert found.notes == {"network": "resnet-34", "from_torch": "torchvision-resnet"}
    head = found.variables["params"]["head"]["kernel"]
    np.testing.assert_array_equal(head, state_dict["fc.weight"].T)

    assert "is there already" in fails(wanted, capsys)
    (tmp_path / "classes.txt").write_text("Katze\nHund\n")
    again = dataclasses.replace(wanted, overwrite=True)
    assert "2 class_names found for num_classes=7" in fails(again, capsys)
    assert trained.load(tmp_path / "net").inputs.class_names[2] == "Maus"


@pytest.mark.slow
def test_a_translator_is_trained_and_translates(tmp_path, capsys):
    """Twelve steps of a tiny network: what it says means nothing, but it is said."""
    pytest.importorskip("sentencepiece")
    pytest.importorskip("sacrebleu")
    sizes = {"layers": 1, "channels": 8, "heads": 2, "max_tokens": 600, "vocabulary": 200}
    recipe = TranslationRecipe(steps=12, **sizes)
    wanted = command.TrainTranslator(tmp_path / "net", recipe=recipe, tested=2)
    assert finish(wanted) == 0
    out = said(capsys)[0]
    assert "step 12 of 12: loss " in out and "of copies; nrefs:1" in out
    found = trained.load(tmp_path / "net")
    assert (found.model.scheme, found.inputs.source, found.inputs.target) == ("fixup", "de", "en")
    assert finish(command.Predict(tmp_path / "net", sentence=("Anna hat drei Hüte.",))) == 0
    assert said(capsys)[0].count("\n") == 1
    refused = command.TrainTranslator(tmp_path / "x", recipe=recipe, scheme="batchnorm")
    assert "expected one for transformer networks" in fails(refused, capsys)
