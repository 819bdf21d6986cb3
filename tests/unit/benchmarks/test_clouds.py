"""Vectors of the benchmark, and the share of the nearest ones that a search has found."""

from __future__ import annotations

import numpy as np

from benchmarks.clouds import NEIGHBOURS, Cloud, Planes, clustered


def test_vectors_are_the_same_in_each_run() -> None:
    """They have length 1, and none of those that are asked with is stored."""
    one, other = clustered(300, asked=5), clustered(300, asked=5)
    assert np.array_equal(one.stored, other.stored)
    assert one.size == 300
    assert np.allclose(np.linalg.norm(one.stored, axis=1), 1, atol=1e-6)
    assert (one.asked @ one.stored.T).max() < 0.99


def test_recall() -> None:
    """Found ones count once, those that were not chosen never, and one as near as the last like that one."""
    angles = np.linspace(0, 1, 20)
    angles[NEIGHBOURS] = angles[NEIGHBOURS - 1]  # as near as the tenth
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    truth = Cloud("line", rows, np.array([[1, 0]], np.float32)).truth()
    assert truth.recall([list(range(10))]) == 1
    assert truth.recall([[*range(9), 10]]) == 1
    assert truth.recall([list(range(11))]) == 1
    assert truth.recall([[*range(9), 11]]) == 0.9
    assert truth.recall([[0, 0, 0]]) == 0.1
    odd = Cloud("line", rows, np.array([[1, 0]], np.float32)).truth(np.arange(20) % 2 == 1)
    assert odd.recall([list(range(0, 20, 2))]) == 0
    assert odd.recall([list(range(1, 20, 2))]) == 1
    assert Cloud("line", rows, rows[:1]).truth(np.arange(20) < 4).recall([[0, 1, 2]]) == 0.75


def test_buckets() -> None:
    """A vector has one bucket per table, and a vector of the same direction the same ones."""
    planes, cloud = Planes(384), clustered(3, asked=1)
    buckets = planes.buckets(cloud.stored)
    assert [len(row) for row in buckets] == [8, 8, 8]
    assert all(0 <= int(name.partition(".")[2]) < 4096 for row in buckets for name in row)
    assert planes.buckets(cloud.stored * 3) == buckets
