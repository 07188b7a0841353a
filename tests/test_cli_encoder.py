"""Encoders that are named on the command line."""

import pytest
from commands import call, save_images

from skpatchsvdd import load
from skpatchsvdd.datasets import make_textures

SOURCE = """
import torch
from torch import nn

def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU())

def make_other():
    return make(1)

network = make()
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(SOURCE)
    save_images(
        tmp_path / "good", make_textures(3, image_size=40, random_state=0).images
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_module_is_imported_and_said_so(folder, capsys):
    name = "my_networks:make"
    fit = ["fit", "good", "-o", "part.model", "--device", "cpu"]
    assert call(*fit, "--encoder", name) == 0
    output = capsys.readouterr().out
    assert f"--encoder {name}: importing my_networks, which runs it" in output
    assert "nothing was trained" in output
    inspect = ["inspect", "part.model", "good", "-o", "out", "--no-report"]
    assert call(*inspect, "--encoder", "my_networks:network") == 0
    assert call(*inspect) == 1
    assert "--encoder package.module:name" in capsys.readouterr().err
    assert call(*inspect, "--encoder", "my_networks:make_other") == 1
    assert "other weights" in capsys.readouterr().err
    update = ["update", "part.model", "good", "--dry-run", "--encoder", name]
    assert call(*update) == 0


def test_encoders_of_the_package_are_named_too(folder):
    fit = ["fit", "good", "-o", "part.model", "--device", "cpu"]
    assert call(*fit, "--encoder", "procedural,my_networks:make") == 0
    from my_networks import make

    assert len(load("part.model", encoder=make()).encoder_.members) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "--encoder must name hierarchical"),
        ("no_such_package:make", "cannot be imported: No module named"),
        ("my_networks:no_such_name", "cannot be imported"),
        ("my_networks:number", "it is a int"),
    ],
)
def test_other_names_are_refused(folder, capsys, name, message):
    fit = ["fit", "good", "-o", "part.model", "--encoder", name]
    assert call(*fit) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "part.model").exists()
