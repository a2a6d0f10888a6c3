"""Images go to [0, 1] and back, pixel by pixel, whatever their axes and range."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xvfl.data.encoder import encoder_from_dict
from xvfl.data.images import ImageEncoder, Images, read_images
from xvfl.errors import InputError

SHAPES = [(4, 5), (3, 4, 5), (5, 6, 3), (1, 4, 4), (5, 4, 1), (2, 5, 5)]


@given(st.data(), st.sampled_from(SHAPES), st.sampled_from(["uint8", "float32", "int16", "bool"]))
def test_images_come_back(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    elements = st.floats(-3, 9, width=32) if dtype == "float32" else None
    pixels = data.draw(hnp.arrays(dtype, (3, *shape), elements=elements))
    encoder = ImageEncoder.fit(pixels, "lab")
    encoded = encoder.encode(pixels, [1, 2, 3])
    assert encoder.layout.image is not None
    assert encoded.values.shape == (3, *encoder.layout.image)
    assert encoded.values.dtype == np.float32
    assert encoded.values.min() >= 0 and encoded.values.max() <= 1
    assert encoded.observed.shape == (3, encoder.layout.raw) and encoded.observed.all()
    assert encoded.codes.shape == (3, 0) and encoded.ids == ["1", "2", "3"]
    for form in (encoded.values, encoded.values.reshape(3, -1)):
        back = encoder.decode(form)
        assert back.dtype == pixels.dtype and back.shape == pixels.shape
        tolerance = 1e-5 * (encoder.high - encoder.low) if dtype == "float32" else 0
        np.testing.assert_allclose(back.astype(float), pixels.astype(float), atol=tolerance)
    again = encoder_from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder


def test_the_range_is_told_from_type_and_values() -> None:
    def ends(pixels: np.ndarray) -> tuple[float, float]:
        encoder = ImageEncoder.fit(pixels, "lab")
        return encoder.low, encoder.high

    assert ends(np.zeros((1, 2, 2), np.uint8)) == (0, 255)
    assert ends(np.array([[[0.25, np.nan], [0.5, 0.75]]])) == (0, 1)
    assert ends(np.array([[[-2.0, 7.0]]])) == (-2, 7)
    assert ends(np.full((1, 2, 2), 5.0)) == (5, 6)


def test_missing_pixels_are_missing_in_every_channel() -> None:
    pixels = np.full((2, 3, 2, 2), 0.5)
    pixels[0, 1, 0, 1] = np.nan
    hidden = np.ones((2, 2, 2), dtype=bool)
    hidden[1, 1, 1] = False
    encoded = ImageEncoder.fit(pixels, "lab").encode(pixels, ["a", "b"], hidden)
    assert encoded.observed.tolist() == [[True, False, True, True], [True, True, True, False]]
    expected = encoded.observed.reshape(2, 1, 2, 2) * np.full((2, 3, 2, 2), 0.5)
    np.testing.assert_array_equal(encoded.values, expected)


def test_pixels_outside_the_training_range_are_clipped() -> None:
    encoder = ImageEncoder.fit(np.array([[[0.0, 4.0]]]), "lab")
    assert encoder.encode(np.array([[[-1.0, 9.0]]]), ["a"]).values.tolist() == [[[[0.0, 1.0]]]]


def test_bad_images_are_refused() -> None:
    pixels = np.zeros((2, 3, 4, 5), np.uint8)
    encoder = ImageEncoder.fit(pixels, "lab")
    with pytest.raises(InputError, match=r"'lab': expected images of shape \(3, 4, 5\).*\(3, 5, 4"):
        encoder.encode(pixels.swapaxes(2, 3), ["a", "b"])
    with pytest.raises(InputError, match="got 1 ids for 2 images"):
        encoder.encode(pixels, ["a"])
    with pytest.raises(InputError, match=r"observed of shape \(2, 4, 5\)"):
        encoder.encode(pixels, ["a", "b"], np.ones((2, 5, 4), bool))
    with pytest.raises(InputError, match="2 are infinite"):
        ImageEncoder.fit(np.full((1, 1, 2), np.inf), "lab")
    with pytest.raises(InputError, match="all are missing"):
        ImageEncoder.fit(np.full((1, 1, 2), np.nan), "lab")
    with pytest.raises(InputError, match=r"got uint8 of shape \(2, 3\)"):
        ImageEncoder.fit(pixels[:, :, 0, 0], "lab")


def test_image_ids_are_checked_like_table_ids() -> None:
    pixels = np.zeros((2, 4, 4))
    assert Images(pixels, [1.0, " b "]).ids == ["1", "b"]
    with pytest.raises(InputError, match="keep one row per id"):
        Images(pixels, ["a", "a"])
    with pytest.raises(InputError, match="1 of 2 are missing"):
        Images(pixels, ["a", None])


def test_images_are_read_from_npz(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    np.savez(path, images=pixels, ids=np.array([b"a", b"b"]), observed=pixels > 3)
    images = read_images(path)
    np.testing.assert_array_equal(images.pixels, pixels)
    assert images.ids == ["a", "b"] and images.observed is not None
    np.savez(path, images=pixels)
    with pytest.raises(InputError, match="unknown array 'ids'"):
        read_images(path)
    np.savez(path, images=pixels, ids=np.array(["a", None], dtype=object))
    with pytest.raises(InputError, match="save images, ids and observed as plain arrays"):
        read_images(path)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="cannot be read as .npz"):
        read_images(path)
    with pytest.raises(InputError, match="file not found"):
        read_images(tmp_path / "no.npz")
